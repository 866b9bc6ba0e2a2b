"""AirDistill's ClientApp with faults at fixed points of a run.

After the first step of each round a device creates the file `replied-ROUND` in its folder. Device 1 stops before it
sends this reply in round 2, and device 0 in round 3, until the file `continue` exists: a test can kill a process at
exactly this point.
"""

import time

from airdistill.flower import client_app
from airdistill.flower.device import Device

STOPS = {(1, 2), (0, 3)}  # device, round


class Faulty(Device):
    def answer(self, step, round_index, question):
        answer = super().answer(step, round_index, question)
        if step == self._sender.steps[0]:
            (self._folder / f"replied-{round_index}").touch()
            while (self.number, round_index) in STOPS and not (self._folder / "continue").exists():
                time.sleep(0.05)
        return answer


client_app.Device = Faulty
app = client_app.app
