"""An endpoint, device or server: a folder of its own with the scenario it was given, its plan, and its ledger.

Neither endpoint takes any of these from the other. A device computes by itself what a round sends and with how much
noise, and so a server cannot make it send with less. The designs of both agree because their ledgers do, round by
round.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from airdistill import __version__
from airdistill.channel.sources import ChannelSource, channel_source
from airdistill.errors import AirDistillError, InputError
from airdistill.flower.account import Account
from airdistill.flower.public_set import SharedPublic, checked_digest
from airdistill.learning.fleet import Engine
from airdistill.planning.feature_means import FeatureMeans
from airdistill.planning.fleet import RealisedFleet, realise_fleet
from airdistill.planning.payloads import ClassMeans, PublicPredictions
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.ledger_header import LedgerHeader
from airdistill.privacy.trust import trust_statement
from airdistill.radio.charged_round import ChargedRound, charge_round
from airdistill.runs.accounts import begin_ledger, ledger_header, mark_of, trusted_ledger
from airdistill.runs.folder import FEDERATION, LEDGER, PLAN, RUN, SCENARIO, digest_of, seal, write_json
from airdistill.runs.options import RunOptions
from airdistill.scenario.loading import load
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Scheme
from airdistill.schemes.distillation import OtaFd
from airdistill.schemes.planning import plan_scheme
from airdistill.schemes.registry import load_scheme

SESSION = "session"  # a file of every endpoint's folder, and a key of the ledger's terms
PUBLIC_SET = "public_set"  # a key of the ledger's terms: the digest of the public samples and what was fitted to them
_PAYLOADS = (ClassMeans, PublicPredictions, FeatureMeans)


class EndpointError(AirDistillError):
    """A round that this endpoint refuses, or a folder that it cannot use."""


@dataclass
class Endpoint:
    """The present state of an endpoint's folder."""

    folder: Path
    scheme: Scheme
    plan: Plan
    source: ChannelSource
    ledger: Ledger

    @classmethod
    def open(
        cls, folder: Path, scheme_name: str, recorded_rounds: int | None = None, account: Account | None = None
    ) -> Endpoint:
        """Open a folder: plan and begin the ledger the first time, and read both from then on.

        The ledger continues those of earlier federations in the endpoint's `account`. `recorded_rounds` restores the
        ledger after so many rounds; later rounds are repeated, and charged once.
        """
        if not (folder / SCENARIO).is_file():
            raise EndpointError(f"{folder}: has no {SCENARIO}; prepare it with airdistill flower prepare")
        scheme = load_scheme(scheme_name)
        if not (folder / RUN).exists():
            _begin(folder, scheme, account)
        elif account is not None:
            account.check(folder)
        # From now on what was sealed counts: another plan, scenario or ledger is refused.
        trusted_ledger(folder)
        plan = _read_plan(folder)
        ledger = Ledger.read(folder / LEDGER, recorded_rounds, noise_is_kept=True)
        return cls(folder, scheme, plan, channel_source(plan.scenario), ledger)

    @property
    def medium(self) -> str:
        return self.plan.scenario.air.medium

    @property
    def sends_update_reports(self) -> bool:
        """Whether devices report losses and accuracies, which no ledger counts: only to a server from which this run
        protects no device anyway."""
        privacy = self.plan.scenario.privacy
        protected = trust_statement(privacy.trust).counts_own_only and privacy.noise == "secure"
        return self.medium == "emulated" and not protected

    @property
    def digest(self) -> str:
        """The digest of what both endpoints must agree on: scheme, scenario with a fixed number of rounds, and public
        set, if there is one."""
        agreed = [self.scheme.name, self.plan.scenario.model_dump_json(), *filter(None, [self._public_digest])]
        return digest_of("\n".join(agreed).encode())

    @property
    def _public_digest(self) -> str:
        return str(self.ledger.header.terms.get(PUBLIC_SET, ""))

    def public(self) -> SharedPublic | None:
        """The federation's public set, ready to embed with; None if its payload needs none."""
        if not self._public_digest:
            return None
        shared = SharedPublic.read(self.folder, self._public_digest)
        shared.use(self.plan, self.engine())
        return shared

    def engine(self) -> Engine:
        return endpoint_engine()

    def charge_through(self, round_index: int) -> ChargedRound:
        """Charge a round, and return it when the ledger is on disk.

        Rounds that this endpoint has missed are charged too: the others have charged them, and a design depends on what
        earlier rounds have cost. Raise `BudgetExceeded` if a device's budget does not allow it.
        """
        settled = self.ledger.settled_round
        if not settled < round_index <= self.plan.num_rounds:
            rule = f"the ledger is at round {settled} of {self.plan.num_rounds}"
            raise EndpointError(f"round {round_index} is refused: {rule}")
        for missed in range(settled + 1, round_index):
            self._charge(missed)
        return self._charge(round_index)

    def _charge(self, round_index: int) -> ChargedRound:
        return charge_round(self.plan, self.ledger, self.source, round_index, secure_sum=self.medium == "secure_sum")


def endpoint_engine() -> Engine:
    """One thread: a device is alone in its process, and others may share the machine."""
    return RunOptions(threads=1, engine="torch").learning_engine()


def check_playable(scheme: Scheme, scenario: Scenario) -> None:
    """Raise unless this federation can run the scheme."""
    if type(scheme).play is not OtaFd.play or scheme.payload not in _PAYLOADS or scheme.tdma:
        rule = (
            "a federation runs schemes that superpose class means, public predictions or feature means: airdistill, "
            "ota_fd, ota_fd_fixed, airdistill_proxy, ota_proxy_fd, airdistill_features, feature_means"
        )
        raise InputError("scheme", scheme.name, rule)
    rule = "all devices participate in every round of a federation"
    if scenario.fleet.sampling != "none":
        raise InputError("fleet.sampling", scenario.fleet.sampling, rule)
    if scenario.fleet.participation < 1:
        raise InputError("fleet.participation", scenario.fleet.participation, rule)
    if scenario.air.medium == "waveform":
        raise InputError("air.medium", "waveform", "a federation has emulated, secure_sum or radio")
    if scenario.data.resample:
        rule = "the devices of a federation have samples of their own; resampling is for simulations"
        raise InputError("data.resample", True, rule)
    if scenario.radio.antennas != 1:
        raise InputError("radio.antennas", scenario.radio.antennas, "a federation receives with one antenna")


def _begin(folder: Path, scheme: Scheme, account: Account | None) -> None:
    """Plan, unless the folder was prepared with a plan; begin the ledger; seal everything."""
    scenario = load(folder / SCENARIO)
    check_playable(scheme, scenario)
    if not (folder / PLAN).exists():
        write_json(folder / PLAN, plan_scheme(scheme, scenario).to_dict())
    plan = _read_plan(folder)
    if plan.scenario != scenario or not _same_fleet(plan.fleet, realise_fleet(scenario)):
        raise EndpointError(f"{folder / PLAN}: is not the plan of the scenario in the same folder")
    public = checked_digest(folder) if plan.uplink.payload.needs_public_set else ""
    header = _header(plan, scheme, _session_in(folder), public)
    if account is None:
        ledger = begin_ledger(folder, header, None)
    else:
        with account.open(folder) as earlier:
            ledger = begin_ledger(folder, header if earlier is None else _on_other_data(header), earlier)
    how = {"airdistill": __version__, "scheme": scheme.name, FEDERATION: scenario.air.medium}
    seal(folder, {**how, "ledger": mark_of(ledger)})


def _on_other_data(header: LedgerHeader) -> LedgerHeader:
    """The header as if each device held other samples than before, which no endpoint can rule out for the others.

    The costs of both are then added device by device, whichever record and row they belong to.
    """
    return replace(header, terms={**header.terms, "device_data": header.terms.get(SESSION, header.terms["noise_key"])})


def _read_plan(folder: Path) -> Plan:
    return Plan.from_dict(json.loads((folder / PLAN).read_bytes()))


def _same_fleet(planned: RealisedFleet, given: RealisedFleet) -> bool:
    """Compare samples and targets; the last bits may differ between machines. A plan may leave budget unused, and keep
    a part of δ, of which earlier federations can have spent some."""
    past = planned.earlier_excess
    unspent = replace(planned, mu=given.mu, delta=planned.delta + past, earlier_excess=given.earlier_excess)
    same = all(
        np.allclose(mine, other, rtol=1e-9) for mine, other in zip(astuple(unspent), astuple(given), strict=True)
    )
    return same and past >= 0 and bool((planned.mu <= given.mu * (1 + 1e-9)).all())


def _session_in(folder: Path) -> str:
    """The federation's own random id; empty in folders that a version before 0.2 prepared."""
    path = folder / SESSION
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def _header(plan: Plan, scheme: Scheme, session: str, public: str) -> LedgerHeader:
    scenario, header = plan.scenario, ledger_header(plan, scheme.name, scheme.releases)
    medium: Any = scenario.air.medium
    if medium == "secure_sum":
        num_devices = plan.fleet.num_devices
        medium = {"devices": num_devices, "least_devices": num_devices - scenario.fleet.expected_dropouts}
    shared = {PUBLIC_SET: public} if public else {}
    return of_session(replace(header, terms={**header.terms, "medium": medium, **shared}), session)


def of_session(header: LedgerHeader, session: str) -> LedgerHeader:
    """The header with noise of this session: no endpoint has all data, by which a simulation keys its noise."""
    if not session:
        return header
    key = digest_of(f"{header.terms['noise_key']} {session}".encode())
    return replace(header, terms={**header.terms, "noise_key": key, SESSION: session})
