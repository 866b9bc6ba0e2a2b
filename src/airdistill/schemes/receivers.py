"""Receivers of public predictions: from the noisy sum of all answers to a row for every public sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.data.public import PublicSet
from airdistill.learning.fleet import Engine
from airdistill.learning.server import Server
from airdistill.planning.payloads import PublicPredictions, declared_public, rows_of_round
from airdistill.planning.plan import Plan
from airdistill.radio.receivers import Estimate, PooledRows, Receiver, TrackedRows, project_on_simplex
from airdistill.scenario.model import Public

# From the pooled rows `[sample, class]` and their noise variances `[sample]` to what is broadcast.
Reading = Callable[[FloatArray, FloatArray], FloatArray]


def public_receiver(plan: Plan, public: PublicSet, engine: Engine) -> Receiver:
    """The receiver that the scenario's `learning.receiver` names."""
    learning, declared, num_classes = plan.scenario.learning, declared_public(plan.scenario), plan.fleet.num_classes
    payload = plan.uplink.payload
    assert isinstance(payload, PublicPredictions)
    # A device answers only so many samples: of a sample that all devices know, this share of them answers.
    scale = payload.num_samples / payload.most_answers
    if learning.receiver == "tracking":
        tracked = TrackedRows(declared.samples, num_classes, learning.knowledge_drift)
        return RowReceiver(declared, num_classes, scale, tracked, lambda rows, _: project_on_simplex(rows))
    pooled = PooledRows(declared.samples, num_classes)
    if learning.receiver == "learning":
        server = Server.of(plan.scenario, public.samples, num_classes, engine)
        return RowReceiver(declared, num_classes, scale, pooled, server.read)
    reading: Reading = (
        (lambda rows, _: rows) if learning.receiver == "linear" else lambda rows, _: project_on_simplex(rows)
    )
    return RowReceiver(declared, num_classes, scale, pooled, reading)


class RowReceiver:
    """Scales rows to a vote of all devices that can know them, accumulates them over rounds, and reads them."""

    def __init__(
        self, public: Public, num_classes: int, scale: float, gathered: PooledRows | TrackedRows, reading: Reading
    ) -> None:
        self._public, self._num_classes, self._scale = public, num_classes, scale
        self._gathered, self._reading = gathered, reading
        self._rounds = 0

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        """From the vector `[1, sample · class]` of a round to the rows of all public samples, `[sample, class]`."""
        self._rounds += 1
        rows = received.reshape(-1, self._num_classes) * self._scale
        places = rows_of_round(self._public, self._rounds)
        self._gathered.add(places, rows, float(noise_var[0]) * self._scale**2)
        return Estimate(self._reading(self._gathered.mean, self._gathered.noise_var))

    def state(self) -> dict[str, FloatArray]:
        return {"rounds": np.array(float(self._rounds)), **self._gathered.state()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._rounds = int(state["rounds"])
        self._gathered.restore({name: array for name, array in state.items() if name != "rounds"})
