"""What a device has answered: the same question gets the same bytes again, and another one in its place gets nothing.

So a server that was killed can ask for a round again, and nothing new leaves the device: neither a second draw of noise
over the same knowledge nor a second vector under one mask.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from airdistill.files import write_whole
from airdistill.flower.records import Record, as_text, digest, from_text
from airdistill.flower.station import StationError

ANSWERS = "answers"


class Answers:
    """Of the rounds that a server may still ask for again: the last two."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ANSWERS

    def given(self, round_index: int, step: str, question: Record, make: Callable[[], Record]) -> Record:
        """The answer of old, or a new one that is on the disk before it leaves."""
        path, asked = self._path(round_index, step), digest(question)
        if path.exists():
            stored = json.loads(path.read_bytes())
            if stored["asked"] != asked:
                raise StationError(f"round {round_index}, {step}: was asked and answered otherwise before")
            return from_text(stored["answer"])
        answer = make()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, json.dumps({"asked": asked, "answer": as_text(answer)}).encode())
        for old in self._folder.glob("*.json"):
            if old.name < f"{round_index - 1:08d}":
                old.unlink()
        return answer

    def _path(self, round_index: int, step: str) -> Path:
        return self._folder / f"{round_index:08d}-{step}.json"
