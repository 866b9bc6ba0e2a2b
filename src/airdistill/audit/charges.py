"""What a ledger has charged, compared with what its rounds released, and the ε that this comes to.

A ledger that charges less than was released is a violation; one that charges more is noted. The conversion from μ to
(ε, δ) is written here a second time: the Gaussian formula with SciPy's normal distribution, and the bound of
concentrated differential privacy for secure noise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from airdistill.arrays import FloatArray, divide_or
from airdistill.audit.released import Released
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.ledger_header import LedgerHeader
from airdistill.privacy.release import GroupedRelease, Release
from airdistill.privacy.sensitivity import JOINT_MODELS
from airdistill.privacy.spending import SubsampledSpending
from airdistill.privacy.trust import OwnNoise, is_built_in, trust_from
from airdistill.streams import stream

_SAME = 1e-9  # relative, of weights, sensitivities and counted noise
_ORDERS = np.linspace(-16.0, 40.0, 2001)  # ln(α − 1)


@dataclass(frozen=True)
class _Difference:
    """The largest difference of one quantity in one ledger entry, `at` (device, row)."""

    round_index: int
    at: tuple[int, int]
    recorded: float
    released: float


class Charges:
    """The ledger entries of a run so far, each beside what its round released."""

    def __init__(self, plan: Plan, ledger: Ledger, own_gains: bool) -> None:
        self._plan, self._header, self._own_gains = plan, ledger.header, own_gains
        self._own_trust = not is_built_in(ledger.header.trust)
        self._less: dict[str, list[_Difference]] = defaultdict(list)
        self._more: dict[str, list[_Difference]] = defaultdict(list)
        self._subsampled = SubsampledSpending.from_header(ledger.header.payload, ledger.header.terms)
        self.spent = np.zeros((ledger.header.num_devices, ledger.header.num_rows))  # (w s)²/c so far
        self.num_releases = 0
        counts = [*ledger.earlier_counts, ledger.num_releases]
        runs = zip([*ledger.earlier_headers, ledger.header], counts, strict=True)
        own_only = trust_from(ledger.header.trust, ledger.header.terms).counts_own_only
        self._excess = 0.0 if own_only else sum(_excess_of(run, count) for run, count in runs)

    def see(self, this: Released, entry: Release) -> None:
        """Compare one entry, and add what its round has really cost."""
        self._compare("weights", this.index, entry.weights, this.weights)
        carried = this.carried_weights
        if carried is not None and entry.carried_weights is not None:
            self._compare("carried weights", this.index, entry.carried_weights, carried)
        for model, sensitivity in this.sensitivities.items():
            self._compare(f"sensitivity ({model})", this.index, entry.sensitivity[model], sensitivity)
        for trust, noise in this.counted.items():
            # More noise is a smaller charge.
            recorded = entry.counted_noise_var[trust]
            self._compare(f"counted noise ({trust})", this.index, recorded, noise, more_is_less=True)
        weights, counted = this.weights, dict(this.counted)
        if self._own_gains:
            weights, carried, counted = entry.weights, entry.carried_weights, dict(entry.counted_noise_var)
        elif self._own_trust:
            counted[self._header.trust] = entry.counted_noise_var[self._header.trust]
        sensitivity = this.sensitivities[self._header.sensitivity]
        revealed = weights if carried is None else weights + carried
        self.spent = self.spent + _price(revealed, sensitivity, counted[self._header.trust])
        if self._subsampled is not None:
            released = Release(this.index, weights, this.sensitivities, counted)
            self._subsampled = self._subsampled.after(GroupedRelease.of(released))
        self.num_releases += 1

    def _compare(
        self, what: str, index: int, recorded: FloatArray, released: FloatArray, more_is_less: bool = False
    ) -> None:
        with np.errstate(invalid="ignore"):  # two rows that were not sent
            off = (recorded - released) / np.where(np.isfinite(released) & (released != 0), np.abs(released), 1.0)
        off = np.where(recorded == released, 0.0, off)
        for found, difference in [(self._less, -off), (self._more, off)]:
            difference = -difference if more_is_less else difference
            at = np.unravel_index(int(np.argmax(difference)), off.shape)
            if difference[at] > _SAME:
                place = (int(at[0]), int(at[1]))
                found[what].append(_Difference(index, place, float(recorded[at]), float(released[at])))

    @property
    def violations(self) -> list[str]:
        found = [
            _undercharged(what, each)
            for what, each in self._less.items()
            if not self._own_gains or what.startswith("sensitivity")
        ]
        return [*found, *_header_differences(self._plan, self._header), *self._late_channels()]

    def _late_channels(self) -> list[str]:
        """Channel errors of all runs, with the noise's part of δ, may not take more than was asked for."""
        scenario = self._plan.scenario
        asked = scenario.privacy.delta.draw(scenario.num_devices, stream(scenario.seed, "privacy.delta"))
        late = self._excess > (asked - self._header.delta) * (1 + _SAME)
        if self._excess == 0 or not late.any() or self._header.terms.get("csi_error", {}).get("reserved_delta") == 0:
            return []
        device = int(np.argmax(late))
        total = float(self._header.delta[device]) + self._excess
        return [
            f"Channel errors of all runs in the ledger take {self._excess:.6g} of δ: with the noise device {device} "
            f"has δ = {total:.6g}, and the scenario asks for {asked[device]:.6g}."
        ]

    @property
    def notes(self) -> list[str]:
        notes = [
            f"The ledger charges more {what} than was released in {_rounds(each)}; that violates nothing."
            for what, each in self._more.items()
            if not self._own_gains
        ]
        if self._own_gains and {what.split(" ")[0] for what in (*self._less, *self._more)} - {"sensitivity"}:
            notes.append(
                "The scheme is a custom one whose gains are not those of the plan: weights and counted noise could "
                "not be recomputed, and the ledger's own were taken."
            )
        if self._own_trust:
            notes.append(
                "What the custom trust model counts was taken from the ledger; the built-in ones were compared."
            )
        if self._subsampled is not None:
            notes.append(
                "Secret participation: the inputs of the composition were recomputed, the composition itself is the "
                "ledger's (airdistill certify --second-opinion composes again)."
            )
        return notes

    def epsilon(self, earlier: Sequence[tuple[str, Release]]) -> FloatArray:
        """ε of every device after these earlier releases and the run's own, `[device]`."""
        header = self._header
        in_full = epsilon_of(np.sqrt(self._squared_mu(earlier, header.sensitivity)), header.delta, header.noise)
        if self._subsampled is None or self.num_releases == 0:
            return in_full
        before = self._squared_mu(earlier, "device", of_this_run=False)
        return np.minimum(in_full, self._subsampled.epsilon(header.trust, header.delta, before))

    def _squared_mu(self, earlier: Sequence[tuple[str, Release]], model: str, of_this_run: bool = True) -> FloatArray:
        """μ² that this run and the given earlier releases have spent, `[device]`; earlier ones as they were charged."""
        by_rows: dict[str, FloatArray] = {self._header.rows: self.spent} if of_this_run else {}
        for rows, release in earlier:
            trust = self._header.trust if self._header.trust in release.counted_noise_var else OwnNoise.name
            cost = _price(release.revealed_weights, release.sensitivity[model], release.counted_noise_var[trust])
            by_rows[rows] = by_rows[rows] + cost if rows in by_rows else cost
        total = np.zeros(self._header.num_devices)
        for cost in by_rows.values():
            total = total + _of_neighbour(cost, model, self._header.relabel)
        return total


def _price(weights: FloatArray, sensitivity: FloatArray, counted: FloatArray) -> FloatArray:
    """(w s)²/c, `[device, row]`: infinite for a vector without noise."""
    squared = (weights * sensitivity) ** 2
    return np.where(squared > 0, divide_or(squared, counted, np.inf), 0.0)


def _of_neighbour(cost: FloatArray, model: str, relabel: bool) -> FloatArray:
    """μ² of the rows in which two neighbours differ: all rows, or the one or two of highest cost."""
    if model in JOINT_MODELS:
        return np.asarray(cost.sum(axis=1))
    return np.asarray(np.sort(cost, axis=1)[:, -(2 if relabel else 1) :].sum(axis=1))


def _undercharged(what: str, found: list[_Difference]) -> str:
    worst = found[0]
    device, row = worst.at
    return (
        f"The ledger charges less than was released, in {_rounds(found)}: {what} of device {device}, row {row} is "
        f"{worst.recorded:.6g} in the ledger and {worst.released:.6g} by the design of the round."
    )


def _excess_of(run: LedgerHeader, num_releases: int) -> float:
    """The probability that a channel error of a run was larger than counted."""
    unaffected = run.terms["uplink"] == "orthogonal_knowledge" or isinstance(run.terms.get("medium"), Mapping)
    if num_releases == 0 or unaffected:
        return 0.0
    if wave := run.terms.get("waveform"):
        return float(wave["excess"]) * max(num_releases, int(wave["rounds"])) / int(wave["rounds"])
    if error := run.terms.get("csi_error"):
        return min(1.0, run.num_devices * num_releases * (1 - float(error["quantile"])))
    return 0.0


def _rounds(found: list[_Difference]) -> str:
    first = f"round {found[0].round_index}"
    return first if len(found) == 1 else f"{first} and {len(found) - 1} more"


def _header_differences(plan: Plan, header: LedgerHeader) -> list[str]:
    """The terms that the ledger states and the plan does not have."""
    privacy, fleet = plan.scenario.privacy, plan.fleet
    found = []
    for name in ("sensitivity", "trust", "accountant", "relabel", "noise"):
        if getattr(header, name) != getattr(privacy, name):
            stated = f"{getattr(header, name)!r} in the ledger and {getattr(privacy, name)!r} in the plan"
            found.append(f"The ledger's terms are not those of the plan: {name} is {stated}.")
    for name in ("epsilon", "delta"):
        if not np.array_equal(getattr(header, name), getattr(fleet, name)):
            found.append(f"The ledger's terms are not those of the plan: {name} differs.")
    return found


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)."""
    if mu == 0 or not np.isfinite(epsilon):
        return 0.0
    if not np.isfinite(mu):
        return 1.0
    return float(ndtr(-epsilon / mu + mu / 2) - np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2)))


def _concentrated_delta(epsilon: float, mu: float) -> float:
    """min over α of e^((α−1)(αρ−ε))/(α−1) · (1−1/α)^α with ρ = μ²/2: what zCDP allows (arXiv 2004.00010)."""
    if mu == 0 or not np.isfinite(epsilon):
        return 0.0
    if not np.isfinite(mu):
        return 1.0

    def logarithm(order: FloatArray) -> FloatArray:
        beyond = np.exp(order)  # α − 1
        exponent = beyond * ((1 + beyond) * mu**2 / 2 - epsilon)
        return np.asarray(exponent - order + (1 + beyond) * (order - np.log1p(beyond)))

    with np.errstate(over="ignore", invalid="ignore"):
        best = _ORDERS[int(np.nanargmin(logarithm(_ORDERS)))]
        step = _ORDERS[1] - _ORDERS[0]
        least = np.nanmin(logarithm(np.linspace(best - step, best + step, 2001)))
    return float(np.exp(min(least, 0.0)))


def epsilon_of(mu: FloatArray, delta: FloatArray, noise: str) -> FloatArray:
    """The smallest ε of every device, `[device]`, by bisection."""
    return np.array([_bisected(float(size), float(share), noise) for size, share in zip(mu, delta, strict=True)])


def _bisected(mu: float, delta: float, noise: str) -> float:
    if mu == 0 or not np.isfinite(mu):
        return mu
    formula = _concentrated_delta if noise == "secure" else _gaussian_delta
    low, high = 0.0, float(mu**2 / 2 + mu * np.sqrt(2 * np.log(1 / delta)) + 1e-12)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if formula(middle, mu) > delta else (low, middle)
    return high
