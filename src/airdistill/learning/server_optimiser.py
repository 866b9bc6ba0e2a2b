"""The server's optimiser in federated learning: from the mean update of a round to the step of the common model.

FedAvg takes the mean update as it is; FedAvgM (Hsu, Qi and Brown 2019) adds momentum; FedAdam (Reddi et al. 2021,
"Adaptive federated optimization") divides by the root of a running mean of squares. It computes on what was received
alone, and so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray

# β2 and τ as Reddi et al. have them.
_SQUARES_DECAY, _LEAST_ROOT = 0.99, 1e-3


@dataclass(frozen=True)
class ServerStep:
    """What an optimiser does: its name (sgd, momentum or adam), step size, momentum, and T if the step size falls."""

    name: str
    lr: float
    momentum: float
    falls_over: int | None = None

    def lr_of(self, round_index: int) -> float:
        """The step size of a round, from 1 on: constant, or lr (1 + cos(π (t − 1)/T))/2."""
        if self.falls_over is None:
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, (round_index - 1) / self.falls_over)))


class ServerOptimiser:
    """Steps `[parameter]` from mean updates `[parameter]`; `state` is all that it keeps between rounds."""

    def __init__(self, how: ServerStep, size: int) -> None:
        self._how, self._round = how, 0
        slots = {"sgd": 0, "momentum": 1, "adam": 2}[how.name]
        self._moments = [np.zeros(size) for _ in range(slots)]

    def step(self, update: FloatArray) -> FloatArray:
        """What to add to the model. Without bias correction, as in the papers: zeros stand for earlier updates."""
        self._round += 1
        lr, beta = self._how.lr_of(self._round), self._how.momentum
        if self._how.name == "sgd":
            return lr * update
        if self._how.name == "momentum":
            self._moments[0] = beta * self._moments[0] + update
            return lr * self._moments[0]
        first, second = self._moments
        first = beta * first + (1 - beta) * update
        second = _SQUARES_DECAY * second + (1 - _SQUARES_DECAY) * update**2
        self._moments = [first, second]
        return np.asarray(lr * first / (np.sqrt(second) + _LEAST_ROOT))

    def state(self) -> dict[str, FloatArray]:
        return {"rounds": np.array(float(self._round)), **{f"moment.{n}": each for n, each in enumerate(self._moments)}}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._round = int(state["rounds"])
        self._moments = [state[f"moment.{n}"].copy() for n in range(len(self._moments))]
