"""The noise that was recorded: its variance, its likelihood ratio, and whether it was used twice.

Every round records how strong its noise was, and evaluated rounds of class means also keep what was received beside
the ideal mean: their difference is the noise as it was drawn. Noise that is weaker than predicted violates the
guarantee; stronger noise is noted. All statistical tests of a run together raise a false alarm with probability
1 − `LEVEL` at most: every test has an equal part of it, divided by the number of its looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betaincinv, ndtri

from airdistill.arrays import FloatArray
from airdistill.audit.empirical import Correlation, variance_interval
from airdistill.audit.membership import LEVEL, Interval
from airdistill.audit.redrawn import RedrawnNoise
from airdistill.audit.released import Released
from airdistill.audit.votes import what_is_wrong_with_votes

NUM_TESTS = 6  # lowest row, all rows, rounds, rows, worst direction, other runs of the chain
CHANCE = (1 - LEVEL) / NUM_TESTS
_SAME = 1e-9  # relative, of numbers that are computed from the same inputs
_REDRAWN = 1e-6  # relative, of the noise's norm
_ROUNDING = 1e-9  # of the norm bound of a vector
_DIGITS = 5e-6  # relative, of entries of a table, which has six digits
_MOST_NUMBERS = 2 * 10**8  # random numbers that are drawn again in all rounds
_MOST_TABLES = 400
_SENTENCES = {
    "predicted": "The records are not those of the plan: {}.",
    "power": "The recorded power is not that of the plan: {}.",
    "energy": "More power was transmitted than vectors within their norm bound need: {}.",
    "ideal": "Class means exceed their norm bound: a mean of norm {}.",
    "tables": "What was received is not what was recorded: {}.",
    "redrawn": "The recorded noise is not what this seed and ledger draw: {}.",
    "weak": "Noise lower than counted: {}.",
}


@dataclass(frozen=True)
class NoiseVariance:
    """Recorded over expected noise variance, with χ² intervals: of all rows together, and of the lowest row."""

    pooled: Interval
    lowest_row: Interval
    lowest_round: int
    num_entries: int

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "pooled": vars(self.pooled), "lowest_row": vars(self.lowest_row)}


class RecordedNoise:
    """The recorded noise of the rounds so far, each compared with its design and drawn again if it was seeded."""

    def __init__(self, own_gains: bool) -> None:
        self._own_gains = own_gains
        self._rows: list[tuple[int, float, int]] = []  # round, recorded over expected variance, entries of the row
        self._length = 0
        self._fewer_draws = 1.0
        self._redrawn = RedrawnNoise()
        self._numbers = 0
        self.num_redrawn = 0
        self.num_left_out = 0
        self._inexact = self._unkept = False
        self._wrong: dict[str, list[str]] = {kind: [] for kind in _SENTENCES}

    def see(self, this: Released, record: dict[str, Any]) -> None:
        """Compare one recorded round."""
        measured, length = _numbers(record["measured_noise_var"]), this.plan.uplink.vector_length
        votes = record.get("pate")
        # Of votes only the noise of those that were answered is recorded.
        length = length if votes is None else int(votes["answered"]) * this.plan.fleet.num_classes
        self._length = length
        self._inexact = this.known is not this.channel or this.observation.misalignment > 0
        expected = _numbers(record["predicted_noise_var"], np.inf) if self._own_gains else this.noise_var()
        if this.repeats is not None and not self._rows:
            self._fewer_draws = this.repeats.fewer_draws
        known = np.isfinite(measured) & np.isfinite(expected) & (expected > 0) & (length > 0)
        if votes is not None and this.plan.scenario.privacy.noise == "secure":
            known[:] = False  # a few whole numbers of small variance have no χ² distribution: see `votes`
        self._rows += [(this.index, float(ratio), length) for ratio in measured[known] / expected[known]]
        self._check_predictions(this, record)
        self._check_power(this, record)
        self._check_tables(this, record)
        if votes is not None:
            self._see_votes(this, votes, float(measured[0]))
        elif this.grid is None:
            self._redraw(this, measured)

    def _check_predictions(self, this: Released, record: dict[str, Any]) -> None:
        predicted, expected = _numbers(record["predicted_noise_var"], np.inf), this.predicted_noise_var()
        if not self._own_gains and not np.allclose(predicted, expected, rtol=_SAME, atol=0.0):
            row = _worst(predicted, expected)
            stated = f"predicts {predicted[row]:.6g} for row {row}, and the design gives {expected[row]:.6g}"
            self._wrong["predicted"].append(f"round {this.index} {stated}")
        off = sorted(set(record.get("silent_devices", ())) ^ set(np.flatnonzero(~this.weights.any(axis=1)).tolist()))
        if not self._own_gains and off:
            rule = "secret participation must not show in it" if this.design.signal_probability < 1 else "by its design"
            self._wrong["predicted"].append(f"round {this.index} records device {off[0]} as inactive or not, {rule}")

    def _check_power(self, this: Released, record: dict[str, Any]) -> None:
        if self._own_gains:
            return
        planned, expected = record["planned_power_w"], this.planned_power_w()
        if not np.isclose(planned, expected, rtol=_SAME, atol=0.0):
            stated = f"round {this.index} plans {planned:.6g} W, and its design has {expected:.6g} W"
            self._wrong["power"].append(stated)
        most = this.largest_energy(CHANCE)
        if record["measured_power_w"] > most:
            stated = f"{record['measured_power_w']:.6g} W in round {this.index}, where {most:.6g} W is the most"
            self._wrong["energy"].append(stated)

    def _check_tables(self, this: Released, record: dict[str, Any]) -> None:
        """Kept class means: a weighted mean of vectors keeps their norm bound, and the noise is the one recorded."""
        table = whitened_table(record)
        if table is None or not this.plan.uplink.payload.neighbours.is_class_mean:
            return
        ideal, received = (_numbers(record["knowledge"][name]) for name in ("ideal", "received"))
        norms, most = np.linalg.norm(ideal, axis=1), this.plan.uplink.largest_norm * (1 + _DIGITS)
        if (norms > most).any():
            self._wrong["ideal"].append(f"{np.nanmax(norms):.6g} in round {this.index}, above the bound {most:.6g}")
        if this.design.signal_probability < 1:
            return  # the mean is that of all devices, and the mask is not recorded
        kept = np.linalg.norm(received - ideal, axis=1)
        recorded = np.sqrt(_numbers(record["measured_noise_var"]) * ideal.shape[1])
        wrong = np.abs(kept - recorded) > _DIGITS * (np.linalg.norm(received, axis=1) + norms)
        if wrong.any():
            row = int(np.argmax(wrong))
            stated = (
                f"row {row} of round {this.index} has noise of norm {kept[row]:.6g}, recorded as {recorded[row]:.6g}"
            )
            self._wrong["tables"].append(stated)

    def _see_votes(self, this: Released, votes: dict[str, Any], measured: float) -> None:
        """The noise of votes that an aggregator answered: in number, and drawn again if it was seeded."""
        wrong = what_is_wrong_with_votes(this, votes, measured, CHANCE)
        if wrong is None:
            self._unkept = True
            return
        self.num_redrawn += this.plan.scenario.privacy.noise == "seeded"
        for kind, sentence in wrong:
            self._wrong[kind].append(f"round {this.index} {sentence}")

    def _redraw(self, this: Released, measured: FloatArray) -> None:
        """Compare ‖r̂ − q'‖ with the norm of the noise drawn again; misaligned signals may add their part."""
        size = (1 + int(np.count_nonzero(this.design.noise_gain.any(axis=1)))) * measured.size * self._length
        if (
            self._own_gains
            or _is_distorted(this)
            or self._numbers + size > _MOST_NUMBERS
            or not self._redrawn.can_follow(this)
        ):
            self.num_left_out += 1
            return
        self._numbers += size
        self.num_redrawn += 1
        drawn = np.sqrt((self._redrawn.of(this) ** 2).sum(axis=1))
        recorded = np.sqrt(measured * self._length)
        allowed = _REDRAWN * drawn + _ROUNDING * this.plan.uplink.largest_norm + this.largest_misalignment()
        wrong = np.isfinite(drawn) & ~(np.abs(recorded - drawn) <= allowed)
        if wrong.any():
            row = int(np.argmax(wrong))
            expected = drawn**2 / self._length
            variances = f"{measured[row]:.6g} in row {row}, and the noise drawn again has {expected[row]:.6g}"
            self._wrong["redrawn"].append(f"round {this.index} records a variance of {variances}")

    def variance(self) -> NoiseVariance | None:
        """None if no row was received with noise."""
        if not self._rows:
            return None
        rounds, ratios, lengths = map(np.array, zip(*self._rows, strict=True))
        lowest, entries = int(np.argmin(ratios)), int(lengths.sum())
        told = max(1, round(entries / self._fewer_draws))
        looks = NUM_TESTS // 2  # of one side of an interval at LEVEL
        of_lowest = int(lengths[lowest])
        return NoiseVariance(
            pooled=variance_interval(float(ratios @ lengths) * (told / entries), told, looks),
            lowest_row=variance_interval(float(ratios[lowest] * of_lowest), of_lowest, looks * len(ratios)),
            lowest_round=int(rounds[lowest]),
            num_entries=entries,
        )

    @property
    def violations(self) -> list[str]:
        found = [_SENTENCES[kind].format(_with_more(wrong)) for kind, wrong in self._wrong.items() if wrong]
        measured = self.variance()
        if measured is not None:
            of = {"of all rows": measured.pooled, f"of a row in round {measured.lowest_round}": measured.lowest_row}
            found += [
                f"Noise lower than predicted: the recorded variance {what} is {interval.value:.4g} of the design's, at "
                f"most {interval.high:.4g}."
                for what, interval in of.items()
                if interval.high < 1
            ]
        return found

    @property
    def notes(self) -> list[str]:
        notes, measured = [], self.variance()
        if self._inexact:
            notes.append(
                "Channels are not known exactly: misaligned signals count as noise, and only weak noise shows."
            )
        elif measured is not None and measured.pooled.low > 1:
            ratio = measured.pooled
            notes.append(f"The noise was stronger than predicted: {ratio.value:.4g} of it, at least {ratio.low:.4g}.")
        if self._unkept:
            notes.append("An earlier version recorded this run and kept no answers: its noise was not drawn again.")
        if self.num_left_out:
            limit = f"it has more than {_MOST_NUMBERS} numbers, or radios with impairments distorted it"
            why = "a custom scheme may have gains of its own" if self._own_gains else limit
            notes.append(f"The noise of {self.num_left_out} rounds was not drawn again: {why}.")
        return notes


def _is_distorted(this: Released) -> bool:
    """Whether radios change signal and noise together: the noise alone would have been received in another way."""
    wave = this.plan.scenario.waveform
    turned = wave.carrier_offset > 0 or wave.phase_noise > 0 or wave.timing_error > 0
    return this.waveform_link is not None and (turned or wave.amplifier != "linear" or wave.adc_bits is not None)


@dataclass(frozen=True)
class WhitenedTable:
    """The noise of a kept table in units of its standard deviation, `[row, entry]`: NaN for a row that is unknown."""

    round_index: int
    noise: FloatArray


def whitened_table(record: dict[str, Any]) -> WhitenedTable | None:
    """The noise of a round's class means; None without them, or if inactive devices bias them."""
    tables = record.get("knowledge")
    if tables is None or "silent_devices" in record:
        return None
    noise = _numbers(tables["received"]) - _numbers(tables["ideal"])
    deviation = np.sqrt(_numbers(record["predicted_noise_var"], np.inf))
    if len(deviation) != len(noise):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        white = noise / deviation[:, None]
    return WhitenedTable(record["round"], np.where(np.isfinite(white), white, np.nan))


@dataclass(frozen=True)
class TableTests:
    """Tests of the kept tables, by name: what was measured and the limit for independent noise."""

    num_rounds: int
    correlations: dict[str, Correlation]

    @property
    def violations(self) -> list[str]:
        sentences = {
            "rounds": "Noise is reused: the recorded noise of two rounds has a correlation of {:.4f}; for independent "
            "draws it is below {:.4f}.",
            "rows": "Noise is reused: the recorded noise of two rows has a correlation of {:.4f}; for independent "
            "draws it is below {:.4f}.",
            "worst direction": "The noise is not centred: along the worst pair's direction the likelihood ratio of the "
            "records is {:.4g} standard deviations away; it should be below {:.4g}.",
        }
        return [
            sentences[name].format(found.value, found.limit)
            for name, found in self.correlations.items()
            if found.value > found.limit
        ]


def table_tests(tables: Sequence[WhitenedTable]) -> TableTests | None:
    """Correlations between rounds and between rows, and the likelihood ratio of the worst pair; None without tables."""
    tables = tables[:_MOST_TABLES]
    if not tables:
        return None
    noise = np.stack([table.noise for table in tables])
    rows = np.isfinite(noise).all(axis=(0, 2))
    if not rows.any():
        return None
    noise = noise[:, rows]
    num_rounds, num_rows, length = noise.shape
    by_row = noise.transpose(1, 0, 2).reshape(num_rows, -1)
    between = {"rounds": _largest(noise.reshape(num_rounds, -1)), "rows": _largest(by_row)}
    found = {name: correlation for name, correlation in between.items() if correlation is not None}
    # Two neighbours differ most if one class mean moves from one corner of the simplex to another.
    along = noise.sum(axis=(0, 1)) / np.sqrt(num_rounds * num_rows)
    corners = np.abs(along[:, None] - along[None]) / np.sqrt(2)
    looks = max(1, length * (length - 1))
    worst = Correlation(float(corners.max()), -float(ndtri(CHANCE / looks)))
    return TableTests(num_rounds, {**found, "worst direction": worst})


def correlation_between(ours: Sequence[WhitenedTable], others: Sequence[WhitenedTable]) -> Correlation | None:
    """The largest correlation between a table of one run and one of another; None if none can be compared."""
    ours, others = ours[:_MOST_TABLES], others[:_MOST_TABLES]
    if not ours or not others or ours[0].noise.shape != others[0].noise.shape:
        return None
    one, other = (np.stack([table.noise for table in tables]) for tables in (ours, others))
    rows = np.isfinite(one).all(axis=(0, 2)) & np.isfinite(other).all(axis=(0, 2))
    if not rows.any():
        return None
    flat = [_unit(each[:, rows].reshape(len(each), -1)) for each in (one, other)]
    products = np.abs(flat[0] @ flat[1].T)
    return Correlation(float(products.max()), _limit(products.size, flat[0].shape[1]))


def _largest(vectors: FloatArray) -> Correlation | None:
    """The largest correlation between any two of `[vector, entry]`; None without a pair."""
    count, length = vectors.shape
    if count < 2 or length < 2:
        return None
    products = np.abs(_unit(vectors) @ _unit(vectors).T)[~np.eye(count, dtype=np.bool_)]
    return Correlation(float(products.max()), _limit(len(products) // 2, length))


def _unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny))


def _limit(looks: int, length: int) -> float:
    """What the largest of so many correlations of independent Gaussian vectors exceeds with probability `CHANCE`.

    The square of one is Beta(½, (n−1)/2).
    """
    return float(np.sqrt(1 - betaincinv((length - 1) / 2, 0.5, CHANCE / looks)))


def _numbers(values: Any, unknown: float = np.nan) -> FloatArray:
    """A list of a record, in which None is infinite or unknown."""

    def each(value: Any) -> Any:
        return [each(entry) for entry in value] if isinstance(value, list) else unknown if value is None else value

    return np.array(each(list(values)), dtype=np.float64)


def _worst(recorded: FloatArray, expected: FloatArray) -> int:
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(recorded - expected) / expected
    return int(np.argmax(np.where(recorded == expected, 0.0, np.nan_to_num(off, nan=np.inf))))


def _with_more(found: list[str]) -> str:
    return found[0] if len(found) == 1 else f"{found[0]} (and {len(found) - 1} more)"
