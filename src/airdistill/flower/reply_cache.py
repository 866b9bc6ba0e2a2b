"""What a device has answered: the same question gets the same bytes again, and another one in its place gets nothing.

So a server that was killed can ask for a round again, and nothing new leaves the device: neither a second draw of noise
over the same knowledge nor a second vector under one mask.

What the devices have answered in the server's present round, kept until it is recorded.

A server that was killed goes on with the very answers that it had. If it asked again instead, a device that was missing
might answer this time, and the next question would be another one than the others have answered: they would refuse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from airdistill.files import write_whole
from airdistill.flower.endpoint import EndpointError
from airdistill.flower.media import Asker
from airdistill.flower.records import Record, as_text, digest, from_text

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
            raise EndpointError(f"round {round_index}, {step}: was asked otherwise before")
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


COLLECTED = "collected"


class CollectedAnswers:
    """Asks the devices, once for every step of a round.

    The first step of a round decides whether enough are there: if not, it is not kept, and is asked again when the run
    is started again.
    """

    def __init__(self, folder: Path, devices: Asker, needed: int) -> None:
        self._folder, self._devices, self._needed = folder / COLLECTED, devices, needed

    def ask(self, step: str, round_index: int, questions: Mapping[int, Record]) -> dict[int, Record | str]:
        path = self._folder / f"{round_index:08d}-{step}.json"
        if path.exists():
            stored = json.loads(path.read_bytes())
            return {int(device): _read(answer) for device, answer in stored.items()}
        answers = self._devices.ask(step, round_index, questions)
        if not any(self._folder.glob(f"{round_index:08d}-*")):
            self._check_enough(round_index, answers)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        written = {
            device: answer if isinstance(answer, str) else [as_text(answer)] for device, answer in answers.items()
        }
        write_whole(path, json.dumps(written).encode(), secret=True)
        return answers

    def forget(self) -> None:
        """The round is recorded."""
        for path in self._folder.glob("*.json"):
            path.unlink()

    def _check_enough(self, round_index: int, answers: Mapping[int, Record | str]) -> None:
        wrong = {device: answer for device, answer in answers.items() if isinstance(answer, str)}
        num_there = len(answers) - len(wrong)
        if num_there < self._needed:
            reasons = "".join(f"; device {device}: {why}" for device, why in wrong.items())
            raise EndpointError(f"round {round_index}: {num_there} devices answered and {self._needed} must{reasons}")


def _read(answer: str | list[str]) -> Record | str:
    return answer if isinstance(answer, str) else from_text(answer[0])
