"""Idempotent replies on both ends: the devices' reply caches and the server's cache of collected replies.

A device answers the same question with the same bytes, and refuses another question in the same step of a round. A
restarted server can therefore repeat a round, and nothing new leaves the device: neither a second draw of noise on the
same knowledge nor a second vector under one mask.

A restarted server continues with the replies that it had already collected. If it asked again instead, a device that
was missing might reply this time. The next question would then differ from the one that the other devices have
answered, and they would refuse it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from airdistill.files import write_whole
from airdistill.flower.endpoint import EndpointError
from airdistill.flower.media import DeviceLink
from airdistill.flower.records import Record, as_text, digest, from_text

DEVICE_REPLIES, SERVER_REPLIES = "answers", "collected"  # the folders' names on disk


class DeviceReplyCache:
    """The replies of one device in the last two rounds, which a server may still repeat."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / DEVICE_REPLIES

    def reply(self, round_index: int, step: str, question: Record, make: Callable[[], Record]) -> Record:
        """The cached reply, or a new one that is on disk before it leaves."""
        path, asked = _path(self._folder, round_index, step), digest(question)
        stored = json.loads(path.read_bytes()) if path.exists() else {}
        if stored and stored["asked"] != asked:
            raise EndpointError(f"round {round_index}, {step}: refused, because an earlier question was different")
        if "answer" in stored:
            return from_text(stored["answer"])
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # The question is stored first: a server must not try several questions until one of them succeeds.
        write_whole(path, json.dumps({"asked": asked}).encode(), secret=True)
        answer = make()
        write_whole(path, json.dumps({"asked": asked, "answer": as_text(answer)}).encode(), secret=True)
        for old in self._folder.glob("*.json"):
            if old.name < f"{round_index - 1:08d}":
                old.unlink()
        return answer


class ServerReplyCache:
    """The devices' replies in the current round, each step of which is requested once.

    The first step of a round decides whether enough devices are present. If not, its replies are not stored, and the
    step is repeated when the run is restarted.
    """

    def __init__(self, folder: Path, devices: DeviceLink, min_devices: int) -> None:
        self._folder, self._devices, self._min_devices = folder / SERVER_REPLIES, devices, min_devices

    def ask(self, step: str, round_index: int, questions: Mapping[int, Record]) -> dict[int, Record | str]:
        """The stored replies of this step, or new ones that are on disk before they are used."""
        path = _path(self._folder, round_index, step)
        if path.exists():
            stored = json.loads(path.read_bytes())
            return {int(device): _from_json(reply) for device, reply in stored.items()}
        replies = self._devices.ask(step, round_index, questions)
        if not any(self._folder.glob(f"{round_index:08d}-*")):
            self._check_enough(round_index, replies)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        written = {device: reply if isinstance(reply, str) else [as_text(reply)] for device, reply in replies.items()}
        write_whole(path, json.dumps(written).encode(), secret=True)
        return replies

    def clear(self) -> None:
        """Delete the replies of a round that is recorded."""
        for path in self._folder.glob("*.json"):
            path.unlink()

    def _check_enough(self, round_index: int, replies: Mapping[int, Record | str]) -> None:
        failed = {device: reply for device, reply in replies.items() if isinstance(reply, str)}
        num_replies = len(replies) - len(failed)
        if num_replies < self._min_devices:
            reasons = "".join(f"; device {device}: {why}" for device, why in failed.items())
            rule = f"fleet.min_devices requires {self._min_devices}"
            raise EndpointError(f"round {round_index}: {num_replies} devices replied and {rule}{reasons}")


def _path(folder: Path, round_index: int, step: str) -> Path:
    return folder / f"{round_index:08d}-{step}.json"


def _from_json(reply: str | list[str]) -> Record | str:
    return reply if isinstance(reply, str) else from_text(reply[0])
