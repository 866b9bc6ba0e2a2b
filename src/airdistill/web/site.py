"""What a server of the page was started with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

LOOK_ONLY = "--look-only"


@dataclass(frozen=True)
class Site:
    """`runs` is the folder whose runs are shown. Who may only look starts nothing and names no file here."""

    runs: Path
    look_only: bool = False

    def as_arguments(self) -> list[str]:
        return [str(self.runs.resolve()), *([LOOK_ONLY] if self.look_only else [])]


def this_site() -> Site:
    """From the arguments that the server hands to the page."""
    return Site(Path(sys.argv[1]), LOOK_ONLY in sys.argv[2:])
