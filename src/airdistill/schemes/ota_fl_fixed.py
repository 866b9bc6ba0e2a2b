from __future__ import annotations

from airdistill.scenario.model import Scenario
from airdistill.schemes.ota_fl import OtaFl
from airdistill.schemes.planning import with_fixed_rounds


class OtaFlFixed(OtaFl):
    """The same with a constant T (400), in the privacy design and as the stop: the paper's "FL Constant T"."""

    name = "ota_fl_fixed"
    inherits = ("ota_fl",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_fixed_rounds(super().adapt(scenario))
