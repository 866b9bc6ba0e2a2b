"""Schemes on class means: the paper's, this project's own, TDMA, and devices without radio or without privacy."""

from __future__ import annotations

from airdistill.radio.superposition import ideal_knowledge
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import BLUE, GREEN, GREY, PURPLE, SKY, Look, Outcome, Round, Scheme
from airdistill.schemes.planning import with_all_steps, with_fixed_rounds


class LocalOnly(Scheme):
    """Every device trains on its own: no radio, no distillation. Federation must beat it."""

    name = "local_only"
    releases = "nothing"
    look = Look(GREY, ":", "")

    def play(self, this: Round) -> Outcome:
        return Outcome(this.learn(None))


class OtaFd(Scheme):
    """Over-the-air federated distillation with differential privacy for the planned number of rounds: the paper's."""

    name = "ota_fd"
    look = Look(BLUE, "-", "o")

    def play(self, this: Round) -> Outcome:
        reception = this.transmit(this.vectors())
        return Outcome(this.learn(reception.broadcast), reception)


class OtaFdFixed(OtaFd):
    """The paper's scheme with a constant T (400), in the privacy design and as the stop: "FD Constant T"."""

    name = "ota_fd_fixed"
    inherits = ("ota_fd",)
    look = Look(SKY, "-", "s")

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_fixed_rounds(scenario)


class OtaFdAntennas(OtaFd):
    """Over-the-air distillation with many antennas and no privacy (arXiv 2507.15256): all power on the signal."""

    name = "ota_fd_antennas"
    inherits = ("ota_fd",)
    look = Look(SKY, "--", "p")

    def adapt(self, scenario: Scenario) -> Scenario:
        return changed(scenario, {"privacy": {"epsilon": float("inf")}})


class AirDistill(OtaFd):
    """This project's own: exact accountant, budget carried over and divided among classes, truncated channel inversion,
    and a receiver that tracks the class means over rounds."""

    name = "airdistill"
    inherits = ("ota_fd",)
    look = Look(GREEN, "-", "D")

    def adapt(self, scenario: Scenario) -> Scenario:
        return with_all_steps(scenario, "tracking", class_budget="optimal")


class OrthogonalFd(OtaFd):
    """The same class means by TDMA, each device protected by its own noise: M times the air time."""

    name = "orthogonal_fd"
    tdma = True
    inherits = ("ota_fd",)
    look = Look(PURPLE, "-", "P")


class FdErrorFree(Scheme):
    """Federated distillation over a perfect channel, without privacy."""

    name = "fd_error_free"
    releases = "bare"
    look = Look(GREEN, "--", "^")

    def play(self, this: Round) -> Outcome:
        reception = this.release_without_privacy(ideal_knowledge(this.plan.fleet.class_counts, this.vectors()))
        return Outcome(this.learn(reception.received), reception)
