from __future__ import annotations

from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_fd import OtaFd
from airdistill.schemes.planning import with_fixed_rounds


class OtaFdFixed(OtaFd):
    """The same with a constant T (400), in the privacy design and as the stop: the paper's "FD Constant T"."""

    name = "ota_fd_fixed"
    inherits = ("ota_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_fixed_rounds(scenario)
