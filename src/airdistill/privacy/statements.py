"""What a certificate states of a ledger's runs, in sentences: neighbours, assumptions, and why a verdict is what it is.

Everything is made from the ledger's headers, because a reader of a ledger may have nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airdistill.privacy.assumptions import (
    ANTENNAS,
    COUNTS_NO_LONGER_PRIVATE,
    EMULATED,
    MOVED_DATA,
    MOVED_PUBLIC,
    OTHER_RUNS,
    OWN_CODE,
    OWN_EMBEDDING,
    OWN_MODEL,
    OWN_SCHEME,
    PILOT,
    RADIO,
    SECURE_SUM,
    STARTED_FROM,
    UPDATE_REPORTS,
    Assumption,
    answers_statement,
    channels_statement,
    comparison_statement,
    counts_are_private,
    counts_statement,
    noise_statement,
    pilot_source,
    public_facts,
    resampling_statement,
    votes_statement,
    waveform_assumptions,
)
from airdistill.privacy.correlation import correlation_statement
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.ledger_header import TDMA, LedgerHeader, excess_delta
from airdistill.privacy.neighbours import neighbours_from
from airdistill.privacy.participation import participation_assumption, participation_statements
from airdistill.privacy.trust import FleetNoise, trust_from
from airdistill.units import rounded_up


@dataclass(frozen=True)
class CertifiedRun:
    """One run of a ledger, on the terms of the last run: its header, and the number of its releases.

    `trained` says that vectors were sent after training on the devices' records, and `devices_add_noise` that the
    releases are protected by more than the receiver's noise.
    """

    header: LedgerHeader
    num_releases: int
    trained: bool = False
    devices_add_noise: bool = True

    @property
    def terms(self) -> Mapping[str, Any]:
        return self.header.terms

    @property
    def is_private(self) -> bool:
        return bool(self.terms["releases"] == "private")

    @property
    def uses_tdma(self) -> bool:
        return bool(self.terms["uplink"] == TDMA)

    @property
    def assumes_untrained_model(self) -> bool:
        """Whether the declared bound is that of a model which does not depend on the record, and the model did."""
        neighbours = neighbours_from(self.header.payload, self.terms)
        return self.trained and neighbours.assumes_static_model(self.header.sensitivity)

    @property
    def is_simulation(self) -> bool:
        """Whether the noise that counts came from a seed; over a radio, receiver noise is real."""
        trust = trust_from(self.header.trust, self.terms)
        over_radio = self.terms.get("medium") == "radio" and self.terms["transceiver"] == "optimal"
        is_received = over_radio and trust.counts_receiver and not self.devices_add_noise
        return self.is_private and self.header.noise == "seeded" and not is_received

    @property
    def protects_by_aligned_channels(self) -> bool:
        """Whether an error of the channel estimates reveals more."""
        medium, trust = self.terms.get("medium"), trust_from(self.header.trust, self.terms)
        return not isinstance(medium, Mapping) and trust.needs_aligned_channels(self.uses_tdma)

    @property
    def excess_delta(self) -> float | None:
        """The probability of a channel error beyond its limit in this run; None if the ledger does not tell."""
        return excess_delta(self.header, self.num_releases, trust_from(self.header.trust, self.terms))


def runs_of(ledger: Ledger) -> list[CertifiedRun]:
    """Every run of a ledger that released anything, on the terms of the last one."""
    last = ledger.header
    terms = {name: getattr(last, name) for name in ("sensitivity", "trust", "relabel")}
    found = [*zip(ledger.earlier_headers, ledger.earlier_counts, strict=True)]
    if ledger.num_releases:
        found.append((last, ledger.num_releases))
    # Models are public when a run begins, and a device trains after it has sent: only round 1 is of untrained models.
    headers = (*ledger.earlier_headers, last)
    trained = ledger.latest_round > 1 or any("after" in header.terms for header in headers)
    fleet_only = ledger.spending.squared_mu(last.sensitivity, FleetNoise.name, last.relabel)
    adds_noise = bool(np.any(np.isfinite(fleet_only) & (fleet_only > 0)))
    return [CertifiedRun(replace(header, **terms), count, trained, adds_noise) for header, count in found]


def assumptions_of(runs: Sequence[CertifiedRun], ledger: Ledger) -> tuple[Assumption, ...]:
    """Each assumption of any run once; what can turn out false comes first."""
    disclosed = any(not counts_are_private(run.terms) for run in runs)
    found = [each for run in runs if run.terms["releases"] != "bare" for each in _assumptions_behind(run, disclosed)]
    if not runs:
        found += _own_code(ledger.header.terms)  # which may send without a charge
    found += _moved_data(runs)
    earlier = ", ".join(dict.fromkeys(header.name for header in ledger.earlier_headers))
    others = f"the earlier runs in its ledger ({earlier})" if earlier else "no other"
    found.append(Assumption("no other runs", OTHER_RUNS.format(others=others), declared=True))
    return tuple(sorted(dict.fromkeys(found), key=lambda each: each.declared))


def _assumptions_behind(run: CertifiedRun, counts_disclosed: bool) -> Iterator[Assumption]:
    header, terms = run.header, run.terms
    neighbours = neighbours_from(header.payload, terms)
    if not run.assumes_untrained_model:
        yield from neighbours.assumptions(header.sensitivity, terms.get("constants", {}))
    yield from _about_noise(run)
    if neighbours.declared is not None:
        yield neighbours.declared
    yield from _own_code(terms)
    yield Assumption("public counts and batch order", public_facts(terms, counts_disclosed), declared=True)
    if "after" in terms:
        named = f"{header.name}, {header.scheme},"
        yield Assumption("models of an earlier run", STARTED_FROM.format(run=named), declared=True)
    source = pilot_source(terms)
    # No declaration makes private data public: that its pilot revealed nothing can turn out false.
    is_private = source == "private"
    yield Assumption("harmless pilot" if is_private else "public pilot", PILOT[source], declared=not is_private)


def _moved_data(runs: Sequence[CertifiedRun]) -> Iterator[Assumption]:
    """What is taken for granted if runs of a chain had other data on the devices: a record costs one device only."""
    held = [run.terms.get("device_data") for run in runs]
    names = [run.header.name for run, data in zip(runs, held, strict=True) if data is None or data != held[-1]]
    if len(runs) > 1 and names:
        public = any(name in run.terms for run in runs for name in ("public", "features"))
        sentence = MOVED_DATA.format(names=", ".join(dict.fromkeys(names))) + (MOVED_PUBLIC if public else "")
        yield Assumption("data stay with their device", sentence)


def _own_code(terms: Mapping[str, Any]) -> Iterator[Assumption]:
    if own := terms.get("own_code"):
        sentences = {"scheme": OWN_SCHEME, "model": OWN_MODEL, "embedding": OWN_EMBEDDING}
        more = "".join(sentence for part, sentence in sentences.items() if part in own)
        yield Assumption("user's own code", OWN_CODE.format(parts=" and ".join(own)) + more)


def _about_noise(run: CertifiedRun) -> Iterator[Assumption]:
    terms, trust = run.terms, trust_from(run.header.trust, run.terms)
    yield from trust.assumptions(run.uses_tdma)
    medium = terms.get("medium")
    if isinstance(medium, Mapping):
        least, of_all = int(medium["least_devices"]), int(medium["devices"])
        yield Assumption("secure sum", SECURE_SUM.format(least=least, all=of_all, enough=2 * least - of_all))
    elif medium == "radio" and trust.counts_others and not trust.counts_receiver:
        yield Assumption("simultaneous transmission", RADIO)
    if "waveform" in terms:
        yield from waveform_assumptions(terms["waveform"], trust.counts_own_only)
    elif run.protects_by_aligned_channels:
        limit = float(terms.get("csi_error_limit", 0.0))
        name = "exact channels" if limit == 0 else "bounded channel error"
        quantile = terms.get("csi_error", {}).get("quantile")
        yield Assumption(name, channels_statement(limit, trust.counts_own_only, run.excess_delta, quantile))
    secret = participation_assumption(terms)
    if secret is not None:
        yield secret
    antennas = int(terms.get("antennas", 1))
    if antennas > 1 and not trust.counts_own_only:
        # No number of antennas can tell a device's own noise from its signal.
        yield Assumption("number of antennas", ANTENNAS.format(count=antennas))


def guarantees_of(
    runs: Sequence[CertifiedRun], assumptions: Iterable[Assumption], data_dependent: float | None = None
) -> tuple[str, ...]:
    """The neighbouring relation, and everything else that is not stated as an assumption."""
    lines = []
    for run in runs:
        header, neighbours = run.header, neighbours_from(run.header.payload, run.terms)
        lines += [
            *neighbours.statement(header.sensitivity, header.relabel, run.trained),
            *answers_statement(run.terms),
            *counts_statement(run.terms),
            *resampling_statement(run.terms),
            *comparison_statement(run.terms),
            trust_from(header.trust, run.terms).statement(run.uses_tdma),
            *participation_statements(run.terms),
            *correlation_statement(run.terms),
            *noise_statement(header.noise, run.terms),
            *votes_statement(run.terms, data_dependent),
        ]
    stated = {assumption.sentence for assumption in assumptions}
    return tuple(line for line in dict.fromkeys(lines) if line not in stated)


RECORD_VOID = (
    "Feature means alone would also protect single records, with a smaller ε. Other payloads of this ledger were made "
    "after training on the records, and so there is no separate figure for one record."
)


def record_figure(runs: Sequence[CertifiedRun]) -> bool | None:
    """Whether every run's bound for one record is exact; None if no run's is, or if a record may be on many devices."""
    if any(run.terms.get("resampled") for run in runs):
        return None
    private = [neighbours_from(run.header.payload, run.terms).record_is_exact for run in runs if run.is_private]
    return all(private) if any(private) and len(private) == len(runs) else (False if any(private) else None)


OTHER_FIGURES = ("record_epsilon", "device_epsilon", "data_dependent_epsilon")


def second_guarantee(
    runs: Sequence[CertifiedRun], record: float | None, device: float | None, delta: float
) -> str | None:
    """The guarantee for the other kind of neighbours in one sentence, or why there is none.

    None if no payload could have one. `record` and `device` are the ε for one record and for a whole device.
    """
    if record_figure(runs) is False:
        return RECORD_VOID
    epsilon = device if record is None else record
    if epsilon is None:
        return None
    whom = "the whole data of any device" if record is None else "one record of any device, its label included"
    condition = "simulated; with secret noise it would be " if any(run.is_simulation for run in runs) else ""
    numbers = f"(ε = {rounded_up(epsilon)}, δ = {rounded_up(delta)})"
    return f"For {whom}: {condition}{numbers}, by an exact bound as well."


def facts_about(ledger: Ledger, runs: Sequence[CertifiedRun]) -> Iterator[str]:
    """What a reader must know of the runs, whatever their numbers are."""
    header = ledger.header
    if ledger.closed:
        yield "Another run continues this ledger: what it released is not included here."
    if len({counts_are_private(run.terms) for run in runs}) > 1:
        yield COUNTS_NO_LONGER_PRIVATE
    if any(run.is_private and pilot_source(run.terms) == "private" for run in runs):
        yield "The pilot was not private: the learning constants were measured on the devices' own data."
    if any(run.is_simulation for run in runs):
        yield _SEEDED + (_SERVER_HAS_SEED if any("medium" in run.terms for run in runs) else "")
    emulated = [run for run in runs if run.terms.get("medium") == "emulated"]
    if emulated:
        own_only = trust_from(header.trust, header.terms).counts_own_only
        yield EMULATED + (" Each device's own noise was present all the same." if own_only else "")
        if not (own_only and all(run.header.noise == "secure" for run in emulated)):
            yield UPDATE_REPORTS


_SEEDED = "The noise of this run is seeded: it is a simulation and protects no device."
_SERVER_HAS_SEED = " The server has the seed, and can remove the noise of every device."


def judged_by_class_mean(header: LedgerHeader) -> bool:
    """Whether Lemma 1 is declared, which is not a valid bound."""
    return neighbours_from(header.payload, header.terms).judged_by_class_mean(header.sensitivity)


def publishes_votes(header: LedgerHeader) -> bool:
    """Whether an ε that depends on private votes may be stated."""
    return bool(header.terms.get("pate", {}).get("data_dependent") == "published")


def neighbours_in_words(header: LedgerHeader) -> str:
    """What a guarantee is for, in a few words: whole-device, or what two neighbouring datasets differ in."""
    relation = neighbours_from(header.payload, header.terms).relation_for(header.sensitivity)
    start = "Neighbours differ in "
    if header.sensitivity == "device":
        return "whole-device"
    return relation.removeprefix(start).rstrip(".") if relation.startswith(start) else header.sensitivity
