from __future__ import annotations

from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_fd import OtaFd
from airdistill.schemes.planning import silence_of


class AirDistill(OtaFd):
    """This project's own: exact accountant, privacy carried over, budget shared out by class, devices in a deep fade
    silent, and a receiver that tracks the knowledge."""

    name = "airdistill"
    inherits = ("ota_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        """Takes every step; a threshold of silence and a receiver of the scenario's own choice stay."""
        radio, learning = scenario.radio, scenario.learning
        return changed(
            scenario,
            {
                "privacy": {
                    "accountant": "exact",
                    "carry_over": not scenario.fleet.participation_hidden,
                    "class_budget": "optimal",
                },
                "radio": {"transceiver": "optimal", "truncation": silence_of(radio)},
                "learning": {"receiver": "tracking" if learning.receiver == "linear" else learning.receiver},
            },
        )
