"""What both ends of a round keep in a folder of their own: the scenario they were given, its plan, and a ledger.

Neither end takes any of it from the other. A device works out by itself what a round sends and with how much noise, so
a server cannot talk it into less; and both ends' designs agree because their ledgers do, round by round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from airdistill.air.exchange import Noise
from airdistill.channel.sources import ChannelSource, channel_source
from airdistill.codesign.plan import Plan
from airdistill.codesign.transceiver import RoundDesign
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.privacy.ledger import Ledger, Opening
from airdistill.runs.accounts import opening_of
from airdistill.runs.folder import LEDGER, PLAN, SCENARIO, digest_of, write_json
from airdistill.runs.options import RunOptions
from airdistill.scenario.loading import load
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Round, Scheme
from airdistill.schemes.ota_fd import OtaFd
from airdistill.schemes.planning import plan_scheme
from airdistill.schemes.registry import load_scheme

EMULATED = (
    "The medium is emulated: the server process plays the channel and sees every device's signal by itself, and it "
    "knows the seed of the noise. This protects nobody and is for test-beds only."
)


class StationError(AirDistillError):
    """A round that this end will not play, or a folder that it cannot play from."""


@dataclass
class Station:
    """One end, as its folder has it at this moment."""

    folder: Path
    scheme: Scheme
    plan: Plan
    source: ChannelSource
    ledger: Ledger

    @classmethod
    def open(cls, folder: Path, scheme_name: str) -> Station:
        """Plans and opens the ledger when first it is asked for, and reads both from then on."""
        if not (folder / SCENARIO).is_file():
            raise StationError(f"{folder}: has no {SCENARIO}: nobody has said what is to be run")
        scheme = load_scheme(scheme_name)
        plan = _planned(folder, scheme)
        path = folder / LEDGER
        ledger = Ledger.read(path) if path.exists() else Ledger.begin(_opening(plan, scheme), path)
        return cls(folder, scheme, plan, channel_source(plan.scenario), ledger)

    @property
    def digest(self) -> str:
        """Of what both ends must agree on: scheme and scenario, in which the number of rounds is fixed."""
        return digest_of(f"{self.scheme.name}\n{self.plan.scenario.model_dump_json()}".encode())

    def engine(self) -> Engine:
        """One thread: a device is alone in its process, and others may share the machine."""
        return RunOptions(threads=1, kernels="torch").engine()

    def pay_for(self, round_index: int) -> tuple[RoundDesign, Noise]:
        """This round's transceiver and noise, once it stands in the ledger, on the disk.

        Rounds in between that this end has missed are paid for too: the others have, and a design goes on from what
        the rounds before it have cost. `BudgetExceeded` if a device cannot pay.
        """
        if not self.ledger.last_round < round_index <= self.plan.num_rounds:
            rule = f"the ledger has come to round {self.ledger.last_round} of {self.plan.num_rounds}"
            raise StationError(f"round {round_index} is refused: {rule}")
        for missed in range(self.ledger.last_round + 1, round_index):
            self._pay(missed)
        return self._pay(round_index)

    def _pay(self, round_index: int) -> tuple[RoundDesign, Noise]:
        nobody = LearningFleet([], Engine())
        this = Round(round_index, self.plan.scenario, self.plan, self.source, nobody, self.ledger)
        design = this.design()
        return design, this.noise(design)


def check_playable(scheme: Scheme, scenario: Scenario) -> None:
    """Raises where the two ends of this federation could not play it."""
    if type(scheme).play is not OtaFd.play or scheme.uplink != "knowledge":
        rule = "a federation plays schemes that send class means over the air: airdistill, ota_fd, ota_fd_fixed"
        raise InputError("scheme", scheme.name, rule)
    if scenario.privacy.noise != "seeded":
        rule = "an emulated medium plays with seeded noise: the server sees single signals, and nothing could hide them"
        raise InputError("privacy.noise", scenario.privacy.noise, rule)


def _planned(folder: Path, scheme: Scheme) -> Plan:
    path = folder / PLAN
    if path.exists():
        return Plan.from_dict(json.loads(path.read_bytes()))
    scenario = load(folder / SCENARIO)
    check_playable(scheme, scenario)
    plan = plan_scheme(scheme, scenario)
    plan = replace(plan, assumptions=(*plan.assumptions, EMULATED))
    write_json(path, plan.to_dict())
    # As it will be read from now on: both ends must design from the same bits.
    return Plan.from_dict(json.loads(path.read_bytes()))


def _opening(plan: Plan, scheme: Scheme) -> Opening:
    opening = opening_of(plan, scheme)
    return replace(opening, terms={**opening.terms, "medium": "emulated"})
