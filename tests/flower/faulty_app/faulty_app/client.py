"""AirDistill's device; number 2 pays for round 2 as it should, and then sends what is no number."""

import numpy as np

from airdistill.flower import client_app
from airdistill.flower.device import Device
from airdistill.flower.records import packed


class Faulty(Device):
    def answer(self, step, round_index, question):
        answer = super().answer(step, round_index, question)
        if (self.number, step, round_index) == (2, "signal", 2):
            return {**answer, "signal": packed(np.full((3, 3), np.nan + 0j))}
        return answer


client_app.Device = Faulty
app = client_app.app
