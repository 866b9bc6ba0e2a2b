"""Receivers of the user's own, and those of public predictions.

The latter go from the noisy sum of all answers to a row for every public sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.data.public import PublicSet
from airdistill.errors import InputError, described
from airdistill.learning.answers import AnsweredStudent
from airdistill.learning.fleet import Engine
from airdistill.learning.models import flat_weights
from airdistill.learning.server import Server
from airdistill.learning.student import Student
from airdistill.planning.payloads import PublicPredictions, declared_public, rows_of_round
from airdistill.planning.plan import Plan
from airdistill.plugins import load_object
from airdistill.privacy.pate import UNANSWERED
from airdistill.radio.receivers import Estimate, PooledRows, Receiver, TrackedRows, project_on_simplex
from airdistill.scenario.sections import Public

# From the pooled rows `[sample, class]`, their noise variances `[sample]`, and the predictions of the server's model of
# an earlier run, if there is one, to what is broadcast.
Reading = Callable[[FloatArray, FloatArray, FloatArray | None], FloatArray]


@runtime_checkable
class StartingReceiver(Protocol):
    """A receiver that can take over the server's model of an earlier run."""

    def start_from(self, predictions: FloatArray) -> None: ...


class OwnReceiver:
    """A user's own receiver, `package.module:Class`, made with the plan; what it returns is checked.

    Its state is read once when a run starts: a state that no checkpoint can keep must not end a run that has spent
    privacy.
    """

    def __init__(self, name: str, plan: Plan) -> None:
        self._name, self._num_rows = name, plan.uplink.num_rows
        shape = (self._num_rows, plan.uplink.vector_length)
        self._shape = shape if plan.uplink.payload.broadcast_is_alike else None
        found = load_object(name, "learning.receiver")
        self._own: Receiver = self._called("it", lambda: found(plan))
        for method in ("estimate", "state", "restore"):
            if not callable(getattr(self._own, method, None)):
                raise InputError("learning.receiver", name, "must have the methods estimate, state and restore")
        self.state()

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        made = self._called("estimate", lambda: self._own.estimate(received.copy(), noise_var.copy()))
        if not isinstance(made, Estimate) or not isinstance(made.knowledge, np.ndarray):
            raise self._wrong("estimate must return airdistill.radio.Estimate(array)")
        if self._shape not in (None, made.knowledge.shape):
            rule = f"estimate must return [row, entry] = {list(self._shape or ())}, not {list(made.knowledge.shape)}"
            raise self._wrong(rule)
        if made.expected_error is not None and np.shape(made.expected_error) != (self._num_rows,):
            raise self._wrong(f"expected_error must be None or an array [row] = [{self._num_rows}]")
        return made

    def state(self) -> dict[str, FloatArray]:
        kept = self._called("state", self._own.state)
        if not isinstance(kept, dict) or not all(isinstance(name, str) for name in kept):
            raise self._wrong("state must return a dictionary of arrays by name; {} without memory")
        for name, array in kept.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
                raise self._wrong(f"state must return NumPy arrays of numbers: make {name} np.array(float({name}))")
        return {name: np.ascontiguousarray(array) if array.ndim else array for name, array in kept.items()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._called("restore", lambda: self._own.restore(state))

    def _called(self, method: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # a user's class can raise any exception
            raise self._wrong(f"{method} failed: {described(error)}") from error

    def _wrong(self, rule: str) -> InputError:
        return InputError("learning.receiver", self._name, rule)


def public_receiver(plan: Plan, public: PublicSet, engine: Engine) -> Receiver:
    """The receiver that the scenario's `learning.receiver` names."""
    learning, declared, num_classes = plan.scenario.learning, declared_public(plan.scenario), plan.fleet.num_classes
    payload = plan.uplink.payload
    assert isinstance(payload, PublicPredictions)
    # A device answers only so many samples: of a sample that all devices know, this share of them answers.
    scale = payload.num_samples / payload.most_answers
    if learning.receiver == "tracking":
        tracked = TrackedRows(declared.samples, num_classes, learning.knowledge_drift)
        return RowReceiver(declared, num_classes, scale, tracked, lambda rows, *_: project_on_simplex(rows))
    pooled = PooledRows(declared.samples, num_classes)
    if learning.receiver == "learning":
        server = Server.of(plan.scenario, public.samples, num_classes, engine)
        return RowReceiver(declared, num_classes, scale, pooled, server.read)
    reading: Reading = (
        (lambda rows, *_: rows) if learning.receiver == "linear" else lambda rows, *_: project_on_simplex(rows)
    )
    return RowReceiver(declared, num_classes, scale, pooled, reading)


class AnswerReceiver:
    """Teaches a model the answers of a trusted aggregator, and broadcasts its predictions or the model."""

    def __init__(self, plan: Plan, public: PublicSet, engine: Engine) -> None:
        declared, self._num_classes = declared_public(plan.scenario), plan.fleet.num_classes
        name = declared.server_model or plan.scenario.model_names[0]
        student = Student(name, public.samples, self._num_classes, engine, plan.scenario.seed)
        self._taught, self._sends_model = AnsweredStudent(student), declared.broadcast == "model"

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:  # noqa: ARG002
        """From answers `[1, query · class]`, NaN where there is none, to what is broadcast."""
        student, num_samples = self._taught.student, len(self._taught.student.samples)
        rows = received.reshape(-1, self._num_classes)
        answered = np.isfinite(rows).all(axis=1)
        if not answered.any():
            return Estimate(np.full((num_samples, self._num_classes), np.nan))
        labels = np.full(num_samples, UNANSWERED)
        labels[: len(rows)][answered] = rows[answered].argmax(axis=1)
        model, probabilities = self._taught.taught(labels)
        predictions = student.predictions(model)
        knowledge = flat_weights(model)[None] if self._sends_model else predictions
        return Estimate(knowledge, predictions=predictions, labels=probabilities)

    def state(self) -> dict[str, FloatArray]:
        """Nothing: devices vote once."""
        return {}

    def restore(self, state: dict[str, FloatArray]) -> None:
        assert not state  # a checkpoint of this receiver


class RowReceiver:
    """Scales rows to a vote of all devices that can know them, accumulates them over rounds, and reads them."""

    def __init__(
        self, public: Public, num_classes: int, scale: float, gathered: PooledRows | TrackedRows, reading: Reading
    ) -> None:
        self._public, self._num_classes, self._scale = public, num_classes, scale
        self._gathered, self._reading = gathered, reading
        self._rounds = 0
        self._known: FloatArray | None = None

    def start_from(self, predictions: FloatArray) -> None:
        """Expect what the server's model of an earlier run predicts, `[sample, class]`."""
        self._known = predictions

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        """From the vector `[1, sample · class]` of a round to the rows of all public samples, `[sample, class]`."""
        self._rounds += 1
        rows = received.reshape(-1, self._num_classes) * self._scale
        places = rows_of_round(self._public, self._rounds)
        self._gathered.add(places, rows, float(noise_var[0]) * self._scale**2)
        return Estimate(self._reading(self._gathered.mean, self._gathered.noise_var, self._known))

    def state(self) -> dict[str, FloatArray]:
        known = {} if self._known is None else {"known": self._known}
        return {"rounds": np.array(float(self._rounds)), **known, **self._gathered.state()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._rounds = int(state["rounds"])
        self._known = state["known"].copy() if "known" in state else None
        self._gathered.restore({name: array for name, array in state.items() if name not in ("rounds", "known")})
