""""""

from __future__ import annotations

from airdistill.radio.superposition import error_free, over_tdma, over_the_air
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.planning import truncation_threshold, with_fixed_rounds


class LocalOnly(Scheme):
    """Every device alone: no radio, no distillation. What federation must beat."""

    name = "local_only"
    releases = "nothing"

    def play(self, this: Round) -> Outcome:
        return Outcome(this.learn(None))


class OtaFd(Scheme):
    """Over-the-air federated distillation with differential privacy, for the planned number of rounds: the paper's."""

    name = "ota_fd"

    def play(self, this: Round) -> Outcome:
        counts, design, slot = this.plan.fleet.class_counts, this.design(), this.scenario.radio.slot
        noise = this.noise(design)
        knowledge = this.local_knowledge()  # as late as can be: a GPU may still be on its way to it
        heard = over_the_air(counts, knowledge, design, this.channel(), noise, slot, this.there())
        heard = heard.estimated_by(this.receiver)
        return Outcome(this.learn(heard.knowledge), heard)


class OtaFdFixed(OtaFd):
    """The same with a constant T (400), in the privacy design and as the stop: the paper's "FD Constant T"."""

    name = "ota_fd_fixed"
    inherits = ("ota_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_fixed_rounds(scenario)


class OtaFdAntennas(OtaFd):
    """Over-the-air distillation with many antennas and no privacy (arXiv 2507.15256): all power on the signal."""

    name = "ota_fd_antennas"
    inherits = ("ota_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        return changed(scenario, {"privacy": {"epsilon": float("inf")}})


class AirDistill(OtaFd):
    """This project's own: exact accountant, privacy carried over, budget shared out by class, devices in a deep fade
    silent, and a receiver that tracks the knowledge."""

    name = "airdistill"
    inherits = ("ota_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        """Takes every step; a threshold of silence and a receiver of the scenario's own choice stay."""
        radio, learning = scenario.radio, scenario.learning
        return changed(
            scenario,
            {
                "privacy": {
                    "accountant": "exact",
                    "carry_over": not scenario.fleet.participation_hidden,
                    "class_budget": "optimal",
                },
                "radio": {"transceiver": "optimal", "truncation": truncation_threshold(radio)},
                "learning": {"receiver": "tracking" if learning.receiver == "linear" else learning.receiver},
            },
        )


class OrthogonalFd(Scheme):
    """The same knowledge sent by one device after the other, each hidden by its own noise: M times the air time."""

    name = "orthogonal_fd"
    uplink = "orthogonal_knowledge"
    inherits = ("ota_fd",)

    def play(self, this: Round) -> Outcome:
        counts, knowledge, design = this.plan.fleet.class_counts, this.local_knowledge(), this.design()
        noise, slot = this.noise(design), this.scenario.radio.slot
        heard = over_tdma(counts, knowledge, design, this.channel(), noise, slot).estimated_by(this.receiver)
        return Outcome(this.learn(heard.knowledge), heard)


class FdErrorFree(Scheme):
    """Federated distillation over a perfect channel, with no privacy at all."""

    name = "fd_error_free"
    releases = "bare"

    def play(self, this: Round) -> Outcome:
        counts = this.plan.fleet.class_counts
        knowledge = this.local_knowledge()
        this.release_without_privacy()
        heard = error_free(counts, knowledge, this.scenario.radio.slot)
        return Outcome(this.learn(heard.received), heard)
