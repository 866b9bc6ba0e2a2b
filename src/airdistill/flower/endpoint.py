"""What both ends of a round keep in a folder of their own: the scenario they were given, its plan, and a ledger.

Neither end takes any of it from the other. A device works out by itself what a round sends and with how much noise, so
a server cannot talk it into less; and both ends' designs agree because their ledgers do, round by round.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from airdistill import __version__
from airdistill.arrays import ComplexArray
from airdistill.channel.sources import ChannelSource, channel_source
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.planning.fleet import RealisedFleet, counted_share, realise_fleet
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.privacy.ledger import Ledger, LedgerHeader
from airdistill.radio.sum_grid import SumGrid
from airdistill.radio.superposition import Noise
from airdistill.runs.accounts import ledger_header, mark_of, trusted_ledger
from airdistill.runs.folder import FEDERATION, LEDGER, PLAN, RUN, SCENARIO, digest_of, seal, write_json
from airdistill.runs.options import RunOptions
from airdistill.scenario.loading import load
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Round, Scheme
from airdistill.schemes.distillation import OtaFd
from airdistill.schemes.planning import plan_scheme
from airdistill.schemes.registry import load_scheme


class EndpointError(AirDistillError):
    """A round that this end will not play, or a folder that it cannot play from."""


@dataclass(frozen=True)
class ChargedRound:
    """A round that stands in the ledger: its channel and design, and what hides it.

    `noise` is for the air, emulated or real; `grid` for a secure sum. One of them is there. `was_begun` says that it
    stood in the ledger before, and devices may have answered.
    """

    index: int
    channel: ComplexArray
    design: RoundDesign
    noise: Noise | None
    grid: SumGrid | None
    was_begun: bool

    @property
    def on_air(self) -> Noise:
        assert self.noise is not None
        return self.noise

    @property
    def summed(self) -> SumGrid:
        assert self.grid is not None
        return self.grid


@dataclass
class Endpoint:
    """One end, as its folder has it at this moment."""

    folder: Path
    scheme: Scheme
    plan: Plan
    source: ChannelSource
    ledger: Ledger

    @classmethod
    def open(cls, folder: Path, scheme_name: str, recorded_rounds: int | None = None) -> Endpoint:
        """Plans and opens the ledger when first it is asked for, and reads both from then on.

        `recorded_rounds`: as it stood after so many; what was charged since is asked for again, and is charged once.
        """
        if not (folder / SCENARIO).is_file():
            raise EndpointError(f"{folder}: has no {SCENARIO}: nobody has said what is to be run")
        scheme = load_scheme(scheme_name)
        if not (folder / RUN).exists():
            _begin(folder, scheme)
        # From here on by what was sealed then: a plan, a scenario or a ledger that is another is refused.
        trusted_ledger(folder)
        plan = _read_plan(folder)
        ledger = Ledger.read(folder / LEDGER, recorded_rounds, noise_is_kept=True)
        return cls(folder, scheme, plan, channel_source(plan.scenario), ledger)

    @property
    def medium(self) -> str:
        return self.plan.scenario.air.medium

    @property
    def tells_lessons(self) -> bool:
        """Whether devices tell losses and accuracies, which no ledger counts: only to a server from which this run
        protects nobody anyway."""
        privacy = self.plan.scenario.privacy
        return self.medium == "emulated" and not (privacy.trust == "own_noise" and privacy.noise == "secure")

    @property
    def digest(self) -> str:
        """Of what both ends must agree on: scheme and scenario, in which the number of rounds is fixed."""
        return digest_of(f"{self.scheme.name}\n{self.plan.scenario.model_dump_json()}".encode())

    def engine(self) -> Engine:
        """One thread: a device is alone in its process, and others may share the machine."""
        return RunOptions(threads=1, kernels="torch").engine()

    def charge_through(self, round_index: int) -> ChargedRound:
        """A round, once it stands in the ledger, on the disk.

        Rounds in between that this end has missed are paid for too: the others have, and a design goes on from what
        the rounds before it have cost. `BudgetExceeded` if a device cannot pay.
        """
        paid = self.ledger.settled_round
        if not paid < round_index <= self.plan.num_rounds:
            rule = f"the ledger has come to round {paid} of {self.plan.num_rounds}"
            raise EndpointError(f"round {round_index} is refused: {rule}")
        for missed in range(paid + 1, round_index):
            self._pay(missed)
        return self._pay(round_index)

    def _pay(self, round_index: int) -> ChargedRound:
        nobody = LearningFleet([], Engine())
        this = Round(round_index, self.plan.scenario, self.plan, self.source, nobody, self.ledger)
        channel, was_begun = this.known_channel(), self.ledger.charged_ahead
        if self.medium != "secure_sum":
            design = this.design()
            return ChargedRound(round_index, this.channel(), design, this.noise(design), None, was_begun)
        # The plan counts all devices' noise, the ledger that of those who cannot be missing.
        spent = self.ledger.cost_of_run * counted_share(self.plan.scenario)
        design = self.plan.design(channel, round_index, spent)
        grid = SumGrid.of(self.plan, design, channel, round_index)
        self.ledger.charge(grid.release())
        return ChargedRound(round_index, channel, design, None, grid, was_begun)


def check_playable(scheme: Scheme, scenario: Scenario) -> None:
    """Raises where the two ends of this federation could not play it."""
    if type(scheme).play is not OtaFd.play or scheme.uplink != "knowledge":
        rule = "a federation plays schemes that send class means over the air: airdistill, ota_fd, ota_fd_fixed"
        raise InputError("scheme", scheme.name, rule)
    if scenario.fleet.sampling != "none":
        raise InputError("fleet.sampling", scenario.fleet.sampling, "a federation asks every device in every round")
    if scenario.fleet.participation < 1:
        rule = "a federation asks every device in every round"
        raise InputError("fleet.participation", scenario.fleet.participation, rule)
    if scenario.radio.antennas != 1:
        raise InputError("radio.antennas", scenario.radio.antennas, "a federation adds up for one antenna")


def _begin(folder: Path, scheme: Scheme) -> None:
    """Plans, if whoever prepared the folder has not; opens the ledger; seals all of it."""
    scenario = load(folder / SCENARIO)
    check_playable(scheme, scenario)
    if not (folder / PLAN).exists():
        write_json(folder / PLAN, plan_scheme(scheme, scenario).to_dict())
    plan = _read_plan(folder)
    if plan.scenario != scenario or not _same_fleet(plan.fleet, realise_fleet(scenario)):
        raise EndpointError(f"{folder / PLAN}: is not the plan of the scenario beside it")
    ledger = Ledger.begin(_opening(plan, scheme), folder / LEDGER)
    how = {"airdistill": __version__, "scheme": scheme.name, FEDERATION: scenario.air.medium}
    seal(folder, {**how, "ledger": mark_of(ledger)})


def _read_plan(folder: Path) -> Plan:
    return Plan.from_dict(json.loads((folder / PLAN).read_bytes()))


def _same_fleet(one: RealisedFleet, other: RealisedFleet) -> bool:
    """Samples and promises; another machine may have other last bits."""
    return all(np.allclose(mine, theirs, rtol=1e-9) for mine, theirs in zip(astuple(one), astuple(other), strict=True))


def _opening(plan: Plan, scheme: Scheme) -> LedgerHeader:
    scenario, header = plan.scenario, ledger_header(plan, scheme)
    medium: Any = scenario.air.medium
    if medium == "secure_sum":
        num_devices = plan.fleet.num_devices
        medium = {"devices": num_devices, "least_devices": num_devices - scenario.fleet.expected_dropouts}
    return replace(header, terms={**header.terms, "medium": medium})
