"""What the devices have answered in the server's present round, kept until it is recorded.

A server that was killed goes on with the very answers that it had. If it asked again instead, a device that was missing
might answer this time, and the next question would be another one than the others have answered: they would refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from airdistill.files import write_whole
from airdistill.flower.media import Asker
from airdistill.flower.records import Record, as_text, from_text
from airdistill.flower.station import StationError

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
            raise StationError(f"round {round_index}: {num_there} devices answered and {self._needed} must{reasons}")


def _read(answer: str | list[str]) -> Record | str:
    return answer if isinstance(answer, str) else from_text(answer[0])
