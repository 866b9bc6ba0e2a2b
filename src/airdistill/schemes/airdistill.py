from __future__ import annotations

from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_fd import OtaFd


class AirDistill(OtaFd):
    """This project's own: exact accountant, privacy carried over, budget shared out by class, devices in a deep fade
    silent, and a receiver that tracks the knowledge."""

    name = "airdistill"
    inherits = ("ota_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return changed(
            scenario,
            {
                "privacy": {"accountant": "exact", "carry_over": True, "class_budget": "optimal"},
                "radio": {"transceiver": "optimal", "truncation": "optimal"},
                "learning": {"receiver": "tracking"},
            },
        )
