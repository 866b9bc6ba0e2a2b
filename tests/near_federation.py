"""The ends of a federation without a federation between them: in one process, message by message."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from airdistill.errors import AirDistillError
from airdistill.flower.coordinator import Introduction
from airdistill.flower.demo import prepare
from airdistill.flower.device import Device
from airdistill.flower.media import NO_ANSWER


def as_it_is(_kind, _round_index, _device, answer):
    return answer


class Nearby:
    """Devices in this process; a test may spoil what they answer."""

    def __init__(self, folders, scheme, radio=""):
        self.folders, self.scheme, self.radio, self.spoil = folders, scheme, radio, as_it_is
        self.data = [""] * len(folders)

    def device(self, number):
        return Device(self.folders[number], number, self.scheme, self.radio, self.data[number])

    def introductions(self, expected):
        devices = [self.device(number) for number in sorted(expected)]
        return [Introduction(each.number, each.station.digest) for each in devices]

    def newcomers(self):
        return []

    def ask(self, step, round_index, questions):
        answers = {}
        for number, question in questions.items():
            if self.spoil(step, round_index, number, "asked") is None:
                answers[number] = NO_ANSWER  # a device that hears nothing
                continue
            try:
                answer = self.device(number).answer(step, round_index, question)
            except AirDistillError as refusal:
                answer = f"failed: {refusal}"
            answers[number] = self.spoil(step, round_index, number, answer)
        return answers


def federation(folder: Path, scenario, scheme, radio=""):
    """The server's folder and the devices."""
    folders = prepare(folder, scenario, scheme)
    return folders.server, Nearby(folders.devices, scheme, radio)
