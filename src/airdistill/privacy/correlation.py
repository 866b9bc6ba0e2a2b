"""Correlated noise: devices add E⁻¹z instead of independent z, and later rounds cancel part of earlier noise.

E is lower triangular and Toeplitz, with non-negative coefficients e_0 = 1, e_1, … A server that sees all rounds can
compute E·Y = E·X + z: round t then reveals Σ_s e_{t−s} x_s behind independent noise z_t. A transcript is therefore as
private as independent rounds whose shifts are these sums, however later vectors depend on earlier receptions. EᵀE has
no negative entry, and so the bound Σ_t (Σ_s e_{t−s} w_s s)² is reached by a shift that is the same in every round.
Two published constructions: banded Toeplitz matrices (BandMF, arXiv 2306.08153, 2405.13763), and buffered linear
Toeplitz matrices (BLT, arXiv 2404.16706, 2408.08868).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from airdistill.arrays import BoolArray, FloatArray

if TYPE_CHECKING:
    from airdistill.privacy.release import Release

CORRELATIONS: Final = ("banded", "blt")
TOLERANCE = 1e-9  # relative, of what must be the same in all rounds
_NAMES = {"banded": "banded Toeplitz", "blt": "buffered linear Toeplitz"}


@dataclass(frozen=True)
class Correlation:
    """The matrix E: e_k = `weights`[k − 1] ("banded"), or e_k = Σ_b weights_b · decays_b^(k−1) ("blt"), k ≥ 1."""

    kind: str
    weights: tuple[float, ...]
    decays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in CORRELATIONS:
            raise ValueError(f"correlation = {self.kind!r}: must be one of {', '.join(CORRELATIONS)}")
        if not all(np.isfinite(weight) and weight >= 0 for weight in self.weights):
            raise ValueError(f"weights = {self.weights}: must be finite and not negative, or the sensitivity is larger")
        if len(self.decays) != (len(self.weights) if self.kind == "blt" else 0):
            raise ValueError(f"decays = {self.decays}: one for each weight of blt, none for banded")
        if not all(0 <= decay < 1 for decay in self.decays):
            raise ValueError(f"decays = {self.decays}: must lie in [0, 1)")

    @property
    def words(self) -> str:
        many = f"{len(self.weights)} buffer{'' if len(self.weights) == 1 else 's'}"
        return f"{_NAMES[self.kind]}, " + (f"{len(self.weights) + 1} bands" if self.kind == "banded" else many)

    def coefficients(self, num_rounds: int) -> FloatArray:
        """e_0, …, e_{T−1}."""
        found = np.zeros(num_rounds)
        found[0] = 1.0
        if self.kind == "banded":
            kept = self.weights[: num_rounds - 1]
            found[1 : 1 + len(kept)] = kept
        elif num_rounds > 1:
            found[1:] = np.array(self.weights) @ np.array(self.decays)[:, None] ** np.arange(num_rounds - 1)
        return found

    def noise_coefficients(self, num_rounds: int) -> FloatArray:
        """The first column of E⁻¹, T entries: how round t repeats the new noise of earlier rounds."""
        return _noise_coefficients(self, num_rounds)

    def noise_variance(self, num_rounds: int) -> FloatArray:
        """The variance of a round's noise over that of its new part, `[round]`: Σ of squares of a row of E⁻¹."""
        return np.asarray(np.cumsum(self.noise_coefficients(num_rounds) ** 2))

    def revealed(self, weights: FloatArray) -> FloatArray:
        """Σ_s e_{t−s} w_s, from w `[round, device]`: the weight of a constant vector in what round t adds."""
        num_rounds = len(weights)
        size = next_fast_len(2 * num_rounds - 1, real=True)
        spectrum = rfft(self.coefficients(num_rounds), size)[:, None] * rfft(weights, size, axis=0)
        return np.asarray(np.maximum(irfft(spectrum, size, axis=0)[:num_rounds], 0.0))

    @property
    def reach(self) -> int | None:
        """How many rounds back a round repeats noise; None for all."""
        return len(self.weights) if self.kind == "banded" else None

    def carried(self, weights: FloatArray) -> FloatArray:
        """Σ_{s<t} e_{t−s} w_s, `[device, ...]`, from the weights of the rounds before, `[round, device, ...]`.

        The last `reach` of them are enough.
        """
        backwards = self.coefficients(len(weights) + 1)[:0:-1]
        return np.asarray(np.tensordot(backwards, weights, axes=1))

    def recalled(self, buffers: Sequence[FloatArray]) -> FloatArray:
        """What a round subtracts from its new noise, from the memory of the noise before it."""
        return sum((weight * kept for weight, kept in zip(self.weights, buffers, strict=False)), np.zeros(()))

    def remembered(self, buffers: Sequence[FloatArray], noise: FloatArray) -> list[FloatArray]:
        """The memory after a round with this noise: the last rounds' noise, or decaying sums of all of it."""
        if self.kind == "banded":
            return [noise, *buffers][: len(self.weights)]
        kept = buffers or [np.zeros(())] * len(self.weights)
        return [decay * buffer + noise for decay, buffer in zip(self.decays, kept, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "weights": list(self.weights), "decays": list(self.decays)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Correlation:
        return cls(str(stored["kind"]), tuple(map(float, stored["weights"])), tuple(map(float, stored["decays"])))

    @classmethod
    def from_header(cls, terms: Mapping[str, Any]) -> Correlation | None:
        """That of a ledger's run; None if its noise is independent."""
        return cls.from_dict(terms["correlation"]) if "correlation" in terms else None


@lru_cache(maxsize=64)
def _noise_coefficients(correlation: Correlation, num_rounds: int) -> FloatArray:
    coefficients, found = correlation.coefficients(num_rounds), np.zeros(num_rounds)
    found[0] = 1.0
    for index in range(1, num_rounds):
        found[index] = -(coefficients[1 : index + 1] @ found[index - 1 :: -1])
    found.flags.writeable = False
    return found


def correlation_statement(terms: Mapping[str, Any]) -> list[str]:
    """What a plan and a certificate state of correlated noise, from a ledger's terms; nothing without it."""
    found = Correlation.from_header(terms)
    if found is None:
        return []
    return [
        f"Noise is correlated over rounds ({found.words}): a round subtracts part of the noise of earlier rounds. "
        "Every device adds its share in every round, also if it sends no vector; shares are constant. The rounds so "
        "far are counted jointly: a round is charged for earlier vectors that it reveals again. The receiver noise is "
        "not correlated and is not counted."
    ]


class JointRounds:
    """The rounds of a run with correlated noise, as its ledger charges them.

    A round that is charged again, after a resumed run has changed, has new noise: it takes the place of the earlier one
    in what later rounds repeat, and both are paid for.
    """

    def __init__(self, correlation: Correlation) -> None:
        self.correlation = correlation
        self._weights: list[FloatArray] = []
        self._first: Release | None = None

    def problem(self, release: Release) -> str | None:
        """Why a release cannot be the next one of the transcript; None if it can."""
        index, carried = release.round_index, release.carried_weights
        if not 1 <= index <= len(self._weights) + 1:
            return f"round {index} follows round {len(self._weights)}: correlated noise needs every round in turn"
        reach = self.correlation.reach
        before = self._weights[0 if reach is None else max(0, index - 1 - reach) : index - 1]
        expected = self.correlation.carried(np.array(before).reshape(-1, *release.weights.shape))
        if carried is None or not _same(carried, expected).all():
            return f"round {index}: carried_weights: must be Σ e_(t−s) w_s over the rounds before it"
        if self._first is None:
            return None
        for what in ("sensitivity", "counted_noise_var"):
            before = getattr(self._first, what)
            for name, array in getattr(release, what).items():
                wrong = ~_same(array, before[name])
                if wrong.any():
                    device, row = np.argwhere(wrong)[0]
                    changed = f"{array[device, row]:.6g}, and was {before[name][device, row]:.6g} in round 1"
                    rule = "with correlated noise it must be the same in every round"
                    return f"round {index}: {what} under {name}: row {row} of device {device} is {changed}; {rule}"
        return None

    def see(self, release: Release) -> None:
        """Take in a release that was charged."""
        self._first = self._first or release
        self._weights = [*self._weights[: release.round_index - 1], release.weights]


def _same(one: FloatArray, other: FloatArray) -> BoolArray:
    with np.errstate(invalid="ignore"):  # rows that were not sent
        return np.asarray((one == other) | (np.abs(one - other) <= TOLERANCE * np.abs(other)))
