"""Progress reports from inside long computations, for example from one round on a public set, which can take minutes.

The code that computes reports its stages without knowing who shows them; the code that shows them listens:

>>> def show(stage, done, total):
...     print(f"{stage}: {done} of {total}")
>>> with listening(show):
...     report_stage("public predictions", 1, 2)
...     report_stage("public predictions", 2, 2)
public predictions: 1 of 2
public predictions: 2 of 2
>>> report_stage("without a listener, a report has no effect", 1, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OnStage = Callable[[str, int, int], None]  # name of the stage, steps done, steps in total

_listener: ContextVar[OnStage | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: OnStage) -> Iterator[None]:
    """Send the reports of the enclosed code, in this thread, to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report_stage(stage: str, done: int, total: int) -> None:
    """Report that `done` of `total` steps of a stage are complete."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total)
