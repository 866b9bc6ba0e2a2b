from __future__ import annotations

from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_fd import OtaFd


class OtaFdAntennas(OtaFd):
    """Over-the-air distillation with many antennas and no privacy (arXiv 2507.15256): all power on the signal."""

    name = "ota_fd_antennas"
    inherits = ("ota_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return changed(scenario, {"privacy": {"epsilon": float("inf")}})
