"""From the noisy sum of all answers on a public set to what the server broadcasts: a row for every public sample.

The receiver that a plan's scenario asks for, at the start of a run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.data.public import PublicSet
from airdistill.errors import InputError
from airdistill.learning.fleet import Engine
from airdistill.learning.server import Server
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.superposed import public_predictions_of
from airdistill.planning.uplinks import declared_public
from airdistill.radio.receivers import Estimate, PooledRows, Receiver, TrackedRows, make_receiver, project_on_simplex
from airdistill.scenario.model import Public
from airdistill.schemes.payloads import rows_of_round

# From the pooled rows `[sample, class]` and their noise variances `[sample]` to what is broadcast.
Reading = Callable[[FloatArray, FloatArray], FloatArray]


def public_receiver(plan: Plan, public: PublicSet, engine: Engine) -> Receiver:
    """By the scenario's `learning.receiver`."""
    learning, declared, num_classes = plan.scenario.learning, declared_public(plan.scenario), plan.fleet.num_classes
    shared = public_predictions_of(plan.uplink)
    assert shared is not None  # the caller has looked
    # A device answers so many samples at most: of a sample that all know, so large a share of them speaks.
    scale = shared.num_samples / shared.most_answers
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
    """Rows are scaled to what a vote of all who can know amounts to, gathered over rounds, and then read."""

    def __init__(
        self, public: Public, num_classes: int, scale: float, gathered: PooledRows | TrackedRows, reading: Reading
    ) -> None:
        self._public, self._num_classes, self._scale = public, num_classes, scale
        self._gathered, self._reading = gathered, reading
        self._rounds = 0

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        """From the vector `[1, sample · class]` of a round; broadcast are all samples' rows, `[sample, class]`."""
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


def receiver_of(plan: Plan, public: PublicSet | None, engine: Engine) -> Receiver | None:
    """None where what is received is taken as it comes: gradients, and class means with a linear receiver."""
    learning, uplink = plan.scenario.learning, plan.uplink
    if uplink.kind == "public_knowledge":
        assert public is not None  # the scenario declares one, or there would be no such plan
        return public_receiver(plan, public, engine)
    if uplink.payload != "knowledge":
        return None
    if learning.receiver == "learning":
        rule = "a server learns from predictions on a public set; class means have linear, projected and tracking"
        raise InputError("learning.receiver", learning.receiver, rule)
    return make_receiver(learning.receiver, uplink.num_rows, learning.knowledge_drift)
