"""A federation without a network: the server and all devices run in one process and exchange messages directly."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord

from airdistill.errors import AirDistillError
from airdistill.flower.coordinator import Introduction
from airdistill.flower.demo import prepare
from airdistill.flower.device import Device
from airdistill.flower.endpoint import SESSION
from airdistill.flower.media import NO_ANSWER


def unchanged(_step, _round_index, _device, answer):
    return answer


class InProcessDevices:
    """Devices in this process.

    A test may replace `tamper`, which is called with "asked" before a device is asked and with the answer after that.
    It returns None for a device that does not reply, and otherwise the answer that the server receives.
    """

    def __init__(self, folders, scheme, radio=""):
        self.folders, self.scheme, self.radio, self.tamper = folders, scheme, radio, unchanged
        self.data, self.accounts = [""] * len(folders), [""] * len(folders)

    def device(self, number):
        return Device(self.folders[number], number, self.scheme, self.radio, self.data[number], self.accounts[number])

    def introductions(self, expected):
        devices = [self.device(number) for number in sorted(expected)]
        return [Introduction(each.number, each.endpoint.digest) for each in devices]

    def newcomers(self):
        return []

    def ask(self, step, round_index, questions):
        answers = {}
        for number, question in questions.items():
            if self.tamper(step, round_index, number, "asked") is None:
                answers[number] = NO_ANSWER
                continue
            try:
                # Flower's records take numbers, strings, bytes and lists of them only: anything else is an error.
                answer = dict(ConfigRecord(self.device(number).answer(step, round_index, dict(ConfigRecord(question)))))
            except AirDistillError as refusal:
                answer = f"failed: {refusal}"
            answers[number] = self.tamper(step, round_index, number, answer)
        return answers


def federation(folder: Path, scenario, scheme, radio="", session=None, ledger=None):
    """The server's folder and the devices; with the id of another federation, the noise of that one."""
    folders = prepare(folder, scenario, scheme, ledger)
    for own in (folders.server, *folders.devices) if session else ():
        (own / SESSION).write_text(session)
    return folders.server, InProcessDevices(folders.devices, scheme, radio)
