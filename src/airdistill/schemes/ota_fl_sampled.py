from __future__ import annotations

from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_fl import OtaFl

_HALF = 0.5


class OtaFlSampled(OtaFl):
    """The same with those whom a coin brings, `fleet.participation` of them on average, by default half: the paper's
    reference DP-FL."""

    name = "ota_fl_sampled"
    inherits = ("ota_fl",)

    def adapt(self, scenario: Scenario) -> Scenario:
        chance = scenario.fleet.participation
        coins = {"sampling": "none", "sampled_devices": None, "participation": _HALF if chance == 1 else chance}
        return super().adapt(changed(scenario, {"fleet": coins}))
