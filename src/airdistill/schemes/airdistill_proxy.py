from __future__ import annotations

from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_proxy_fd import OtaProxyFd
from airdistill.schemes.planning import for_public_set, refuse_server_selector, silence_of


class AirDistillProxy(OtaProxyFd):
    """This project's own for devices that hold different classes: they vote on what they know of a public set, the air
    adds the votes up, and a model of the server's own learns what the noisy sums mean."""

    name = "airdistill_proxy"
    inherits = ("ota_proxy_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        """Takes every step; a threshold of silence and a receiver of the scenario's own choice stay."""
        radio, learning = scenario.radio, scenario.learning
        refuse_server_selector(scenario)
        return changed(
            for_public_set(scenario, abstain=True),
            {
                "privacy": {"accountant": "exact", "carry_over": not scenario.fleet.participation_hidden},
                "radio": {"transceiver": "optimal", "truncation": silence_of(radio)},
                "learning": {"receiver": "learning" if learning.receiver == "linear" else learning.receiver},
            },
        )
