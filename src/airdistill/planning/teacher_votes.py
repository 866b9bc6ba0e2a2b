"""Votes on public samples for a trusted aggregator (PATE, `privacy.pate`): the payload, and the rule for its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import Described, InputError
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payload import (
    OneVector,
    answers_per_device,
    declared_public,
    known_classes,
    require_device_sensitivity,
)
from airdistill.privacy.neighbours import TEACHER_VOTES
from airdistill.privacy.pate import ConfidentGnmax
from airdistill.privacy.targets import epsilon_of_mu
from airdistill.scenario.model import Scenario
from airdistill.scenario.sections import Public

# Of the published MNIST setting, 250 devices: T = 200, σ1 = 150, σ2 = 40, 286 answers to 640 queries.
_THRESHOLD = 0.8  # of the devices that know a class
_VOTE_NOISE = 0.16  # of the same
_NOISE_RATIO = 3.75  # σ1/σ2
_QUERIES_AN_ANSWER = 640 / 286
_ROUNDING = 1e-9  # relative, of μ²: what a ledger allows


@dataclass(frozen=True)
class TeacherVotes(OneVector):
    """One-hot votes on N public samples, for an aggregator that adds noise to their counts.

    A device votes on at most `most_answers` samples. The diameter is that of what is released, every count scaled to
    have noise σ2 (`ConfidentGnmax.squared_distance`).
    """

    settings: ConfidentGnmax
    most_answers: int
    data_dependent: str = "withheld"

    kind = "teacher_votes"
    neighbours = TEACHER_VOTES
    needs_public_set = True
    receivers = ("learning",)
    error_label = "Error of a mean vote"
    words = "votes"

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> TeacherVotes:
        del vector_length
        require_device_sensitivity(scenario, "votes of a trained model")
        _check_transmits_once(scenario)
        public = declared_public(scenario)
        settings = settings_for(public, fleet)
        _check_budget(settings, public, scenario, fleet)
        votes = answers_per_device(public, settings.num_queries, fleet)
        return cls(fleet, settings, votes, public.data_dependent)

    @property
    def num_samples(self) -> int:
        return self.settings.num_queries

    @property
    def vector_length(self) -> int:
        return self.num_samples * self.fleet.num_classes

    @property
    def largest_norm(self) -> float:
        return float(np.sqrt(self.most_answers))

    @property
    def diameter(self) -> float:
        return math.sqrt(self.settings.squared_distance)

    def problem(self, vectors: FloatArray) -> str | None:
        """Votes are whole: one for one class, or none."""
        votes = vectors.reshape(len(vectors), self.num_samples, -1)
        wrong = ~((votes == 0) | (votes == 1)).all(axis=(1, 2)) | (votes.sum(axis=2) > 1).any(axis=1)
        return (
            f"device {int(np.argmax(wrong))} would cast more or less than one vote on a sample" if wrong.any() else None
        )

    def summary(self) -> list[tuple[str, str]]:
        own = self.settings
        checked = f"a largest count of {own.threshold:.4g} of {self.fleet.num_devices} votes after noise"
        return [
            ("Queries", f"{own.num_queries} public samples, of which at most {own.most_answers} are answered"),
            ("  answered from", f"{checked} σ1 = {own.threshold_noise:.4g}"),
            ("  noise of a count", f"σ2 = {own.vote_noise:.4g} votes"),
        ]

    def header(self) -> dict[str, Any]:
        settings = {name: float(value) for name, value in vars(self.settings).items()}
        facts = {"pate": {**settings, "data_dependent": self.data_dependent}}
        return {"public": {"samples": self.num_samples, "answers": self.most_answers}, **facts}


def settings_for(public: Public, fleet: RealisedFleet) -> ConfidentGnmax:
    """The aggregator's settings: what the scenario declares, and for the rest the published MNIST setting, scaled.

    Let v be the devices that know a class on average. T = 0.8 v and σ1 = 3.75 σ2. As many samples are answered as the
    strictest privacy target allows with σ2 = 0.16 v, and 2.24 are asked for each of them. σ2 then uses the whole
    target.
    """
    squared_mu = float(fleet.mu.min()) ** 2
    voters = fleet.num_devices * known_classes(fleet) / fleet.num_classes
    threshold = _THRESHOLD * voters if public.vote_threshold is None else public.vote_threshold * fleet.num_devices
    answers = _answers_for(public, squared_mu, _VOTE_NOISE * voters)
    queries = min(public.rows_a_round, math.ceil(answers * _QUERIES_AN_ANSWER))
    if public.samples_per_round is not None:
        queries = public.rows_a_round
    if answers > queries:
        raise InputError("public.answered", answers, f"only {queries} public samples are asked about")
    vote_noise = public.vote_noise
    if vote_noise is None:
        vote_noise = _noise_for(public.threshold_noise, squared_mu, queries, answers)
    threshold_noise = _NOISE_RATIO * vote_noise if public.threshold_noise is None else public.threshold_noise
    return ConfidentGnmax(threshold, threshold_noise, vote_noise, queries, answers)


def _answers_for(public: Public, squared_mu: float, usual_noise: float) -> int:
    """A: the scenario's, or what the budget allows with the scenario's noise or the usual one."""
    if public.answered is not None:
        return public.answered
    if math.isinf(squared_mu):
        return public.rows_a_round
    noise = usual_noise if public.vote_noise is None else public.vote_noise
    check = (_NOISE_RATIO * noise if public.threshold_noise is None else public.threshold_noise) ** -2
    left, each = squared_mu, 2 / noise**2 + _QUERIES_AN_ANSWER * check
    if public.samples_per_round is not None:
        left, each = squared_mu - public.rows_a_round * check, 2 / noise**2
    return min(max(1, math.floor(left / each * (1 + _ROUNDING))), public.rows_a_round)


def _noise_for(threshold_noise: float | None, squared_mu: float, queries: int, answers: int) -> float:
    """σ2 that uses the whole budget: μ² = N/σ1² + 2A/σ2²."""
    if math.isinf(squared_mu):
        return 0.0
    if threshold_noise is None:
        return math.sqrt((2 * answers + queries / _NOISE_RATIO**2) / squared_mu)
    left = squared_mu - queries / threshold_noise**2
    if left <= 0:
        rule = f"the checks of {queries} queries alone exceed the privacy target; raise it, or ask about fewer samples"
        raise InputError("public.threshold_noise", threshold_noise, rule)
    return math.sqrt(2 * answers / left)


def _check_transmits_once(scenario: Scenario) -> None:
    if scenario.learning.rounds != 1:
        rule = "devices vote once; leave --rounds out, or set it to 1"
        raise InputError("learning.rounds", scenario.learning.rounds, rule)


def _check_budget(settings: ConfidentGnmax, public: Public, scenario: Scenario, fleet: RealisedFleet) -> None:
    """Raise unless every device's target allows the settings that the scenario declares."""
    if settings.vote_noise == 0:
        return
    mu = math.sqrt(settings.squared_distance) / settings.vote_noise
    device = int(np.argmin(fleet.mu))
    if mu**2 <= float(fleet.mu[device]) ** 2 * (1 + _ROUNDING):
        return
    spent = epsilon_of_mu(mu, fleet.delta[device], scenario.privacy.noise)[0]
    declared = {"vote_noise": public.vote_noise, "threshold_noise": public.threshold_noise, "answered": public.answered}
    field_name = next((name for name, value in declared.items() if value is not None), "samples_per_round")
    rule = (
        f"{settings.most_answers} answers with σ2 = {settings.vote_noise:.4g} and {settings.num_queries} checks with "
        f"σ1 = {settings.threshold_noise:.4g} cost ε = {spent:.4g}; what device {device} may still spend is less than "
        f"that (target {fleet.epsilon[device]:.4g}): raise the noise, or answer fewer samples"
    )
    raise InputError(f"public.{field_name}", Described(str(getattr(public, field_name))), rule)
