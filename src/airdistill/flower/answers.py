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
        stored = json.loads(path.read_bytes()) if path.exists() else {}
        if stored and stored["asked"] != asked:
            raise StationError(f"round {round_index}, {step}: was asked otherwise before")
        if "answer" in stored:
            return from_text(stored["answer"])
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Before it is tried: a server must not try one question after the other until one fails or does not.
        write_whole(path, json.dumps({"asked": asked}).encode(), secret=True)
        answer = make()
        write_whole(path, json.dumps({"asked": asked, "answer": as_text(answer)}).encode(), secret=True)
        for old in self._folder.glob("*.json"):
            if old.name < f"{round_index - 1:08d}":
                old.unlink()
        return answer

    def _path(self, round_index: int, step: str) -> Path:
        return self._folder / f"{round_index:08d}-{step}.json"
