"""AirDistill's ClientApp with faults at fixed points of a run.

After the first step of each round a device creates the file `replied-ROUND` in its folder. Device 1 stops before it
sends this reply in round 2, and device 0 in round 3, until the file `continue` exists: a test can kill a process at
exactly this point. In round 2 device 2 is charged as usual, and sends a signal that is not finite.
"""

import time

import numpy as np

from airdistill.flower import client_app
from airdistill.flower.device import Device
from airdistill.flower.records import packed

STOPS = {(1, 2), (0, 3)}  # device, round


class Faulty(Device):
    def answer(self, step, round_index, question):
        answer = super().answer(step, round_index, question)
        if step == self._sender.steps[0]:
            (self._folder / f"replied-{round_index}").touch()
            while (self.number, round_index) in STOPS and not (self._folder / "continue").exists():
                time.sleep(0.05)
        if (self.number, step, round_index) == (2, "signal", 2):
            return {**answer, "signal": packed(np.full((3, 3), np.nan + 0j))}
        return answer


client_app.Device = Faulty
app = client_app.app
