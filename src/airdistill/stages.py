"""What long work within a round is at, told to whoever shows it: a single round on a public set can take minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OnStage = Callable[[str, int, int], None]  # what is done, how much of it, of how much

_listener: ContextVar[OnStage | None] = ContextVar("listener", default=None)


@contextmanager
def told_to(listener: OnStage) -> Iterator[None]:
    """Whatever is told in here goes to this listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(stage: str, done: int, total: int) -> None:
    """To the listener, if anybody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total)
