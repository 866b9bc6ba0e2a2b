"""Rows of answers on a public set, one for each of its samples, gathered over rounds. All rows of a round have the same
noise."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.codesign.tracking import filter_step


class PooledRows:
    """Rows received over several rounds, each round weighed by what its noise leaves of it.

    The mean of a row is Σ_t r_t/v_t over Σ_t 1/v_t, and its variance 1/Σ_t 1/v_t; a row that was never received is no
    number. What is received without noise stands alone, as there is nothing to weigh it against.
    """

    def __init__(self, num_rows: int, num_classes: int) -> None:
        self._weighed, self._information = np.zeros((num_rows, num_classes)), np.zeros(num_rows)

    def add(self, places: IntArray, received: FloatArray, noise_var: float) -> None:
        """Rows `[row, class]` at these places; a row that is no number was not received."""
        heard = np.isfinite(received).all(axis=1)
        information = 1.0 / max(noise_var, _LEAST_NOISE)
        self._weighed[places[heard]] += information * received[heard]
        self._information[places[heard]] += information

    @property
    def mean(self) -> FloatArray:
        """`[row, class]`."""
        known = self._information > 0
        divided = self._weighed / np.where(known, self._information, 1.0)[:, None]
        return np.where(known[:, None], divided, np.nan)

    @property
    def noise_var(self) -> FloatArray:
        """Per entry, `[row]`; infinite where nothing was received."""
        known = self._information > 0
        return np.where(known, 1.0 / np.where(known, self._information, 1.0), np.inf)

    def state(self) -> dict[str, FloatArray]:
        return {"weighed": self._weighed, "information": self._information}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._weighed, self._information = state["weighed"].copy(), state["information"].copy()


_LEAST_NOISE = 1e-30  # a noiseless row counts for so much more than any other that it stands alone


class TrackedRows:
    """A Kalman filter for every row by itself: a row starts at the mean of all, as far off as rows are found to differ.

    How much rows differ is read off the first ones: their mean square about their mean, less the noise. Between rounds
    a row moves by `drift`, a variance per entry.
    """

    def __init__(self, num_rows: int, num_classes: int, drift: float) -> None:
        self._mean, self._variance = np.zeros((num_rows, num_classes)), np.full(num_rows, np.inf)
        self._drift = drift

    def add(self, places: IntArray, received: FloatArray, noise_var: float) -> None:
        """Rows `[row, class]` at these places; a row that is no number was not received."""
        self._variance += self._drift
        heard = np.isfinite(received).all(axis=1)
        places, rows = places[heard], received[heard]
        if not len(places):
            return
        new = np.isinf(self._variance[places])
        if new.any():
            middle = rows[new].mean(axis=0)
            self._mean[places[new]] = middle
            self._variance[places[new]] = max(float(((rows[new] - middle) ** 2).mean()) - noise_var, 0.0)
        gain, variance = filter_step(self._variance[places], np.full(len(places), noise_var), 0.0)
        self._mean[places] += gain[:, None] * (rows - self._mean[places])
        self._variance[places] = variance

    @property
    def mean(self) -> FloatArray:
        """`[row, class]`; not a number where nothing was received."""
        return np.where(np.isfinite(self._variance)[:, None], self._mean, np.nan)

    @property
    def noise_var(self) -> FloatArray:
        """The filter's own idea of its squared error per entry, `[row]`."""
        return self._variance

    def state(self) -> dict[str, FloatArray]:
        return {"mean": self._mean, "variance": self._variance}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._mean, self._variance = state["mean"].copy(), state["variance"].copy()
