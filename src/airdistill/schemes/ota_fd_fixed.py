from __future__ import annotations

from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_fd import OtaFd

NUM_ROUNDS = 400


class OtaFdFixed(OtaFd):
    """The same with a constant T = 400, in the privacy design and as the stop: the paper's "FD Constant T"."""

    name = "ota_fd_fixed"

    def adapt(self, scenario: Scenario) -> Scenario:
        return changed(scenario, {"learning": {"rounds": NUM_ROUNDS}})
