"""The recipes of the figures: scenarios, step sizes and schemes.

A scheme "on the terms of" another has the link, ε and δ of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airdistill.errors import InputError
from airdistill.runs.comparison import Arm
from airdistill.scenario.loading import changed, for_scheme, load
from airdistill.scenario.model import Scenario

FIGURE_SCENARIOS = ("paper", "paper-literal")
PROPOSED = "ota_fd"
OWN = "airdistill"
SAME_TERMS_FL, SAME_TERMS_FD = "ota_fl_on_fd_terms", "ota_fd_on_fl_terms"


@dataclass(frozen=True)
class StepSizes:
    """Initial step sizes η0 of distillation, of over-the-air gradients (clipped) and of FedSGD (not clipped)."""

    knowledge: float
    ota_fl: float
    fedsgd: float


# The best of a grid on a separate seed, error-free or with the paper's privacy.
TUNED = {
    "paper": StepSizes(knowledge=0.1, ota_fl=10.0, fedsgd=1.0),
    "paper-literal": StepSizes(knowledge=0.3, ota_fl=10.0, fedsgd=1.0),
}
STEPS = ("printed", "tuned")
# Distillation with tuned steps gains nothing after this many rounds; its plan would reach max_rounds.
_SETTLED = 100
_QUICK = {"devices": 20, "samples": 60, "max_rounds": 40, "fixed_rounds": 60}


def figure_scenario(name: str, step: str, quick: bool, changes: list[str]) -> Scenario:
    """Return the scenario of a figure, with printed or tuned step sizes, at full or reduced size."""
    if name not in FIGURE_SCENARIOS:
        raise InputError("--scenarios", name, f"must be one of {', '.join(FIGURE_SCENARIOS)}")
    scenario = load(name, changes)
    if scenario.learning.rounds != "optimal":
        raise InputError("learning.rounds", scenario.learning.rounds, "the figures optimise T; leave the field out")
    if step == "tuned":
        scenario = changed(scenario, _step_sizes(TUNED[name]))
    return scaled_down(scenario) if quick else scenario


def _step_sizes(tuned: StepSizes) -> dict[str, Any]:
    return {
        "learning": {"initial_lr": tuned.knowledge},
        "overrides": {
            "ota_fl": {"learning": {"initial_lr": tuned.ota_fl}},
            "fedsgd": {"learning": {"initial_lr": tuned.fedsgd}},
        },
    }


def scaled_down(scenario: Scenario) -> Scenario:
    """Reduce devices, samples and rounds. ε grows as the data shrinks, and so a round needs about the same noise."""
    samples = scenario.data.samples_per_device
    if samples is None or samples.kind != "same":
        raise InputError("data.samples_per_device", samples, "--quick needs one number for all devices")
    factor = scenario.num_devices * samples.numbers[0] / (_QUICK["devices"] * _QUICK["samples"])
    scaled: dict[str, Any] = {
        "fleet": {"devices": _QUICK["devices"]},
        "data": {"samples_per_device": _QUICK["samples"]},
        "learning": {"max_rounds": _QUICK["max_rounds"], "fixed_rounds": _QUICK["fixed_rounds"]},
        "privacy": {"epsilon": _times(factor, scenario)},
        "overrides": {"ota_fl": {"privacy": {"epsilon": _times(factor, for_scheme(scenario, "ota_fl"))}}},
    }
    return changed(scenario, scaled)


def _times(factor: float, scenario: Scenario) -> float | list[float]:
    """Multiply a scenario's ε, which is one number or a range."""
    epsilon = scenario.privacy.epsilon
    if epsilon.kind == "list":
        raise InputError("privacy.epsilon", "a list", "--quick needs one number or a range")
    scaled = [factor * number for number in epsilon.numbers]
    return scaled[0] if epsilon.kind == "same" else scaled


def accuracy_arms(scenario: Scenario, step: str, baseline_rounds: int) -> tuple[Arm, ...]:
    """Return the paper's schemes, `airdistill` and further baselines; with tuned steps also both on each other's terms.

    In all arms each device passes over its samples once a round. Arms without privacy run for `baseline_rounds`. The
    printed step sizes were not meant for the other scheme's terms.
    """
    arms = (
        Arm.of(PROPOSED, scenario),
        Arm.of(OWN, scenario, scenario.learning.fixed_rounds),
        Arm.of("fd_error_free", scenario, baseline_rounds),
        Arm.of("local_only", scenario, baseline_rounds),
        Arm.of("ota_fd_fixed", scenario),
        Arm.of("ota_fl", scenario),
        Arm.of("ota_fl_fixed", scenario),
        Arm.of("fedsgd", scenario, baseline_rounds),
        Arm.of("orthogonal_fd", scenario),
    )
    if step != "tuned":
        return arms
    settled = min(_SETTLED, baseline_rounds)
    return (
        *arms,
        Arm(SAME_TERMS_FL, "ota_fl", on_fd_terms(scenario)),
        Arm(SAME_TERMS_FD, "ota_fd", on_fl_terms(scenario), settled),
    )


def on_fd_terms(scenario: Scenario) -> Scenario:
    """Give federated learning the link and privacy of distillation; of its overrides only the learning ones remain."""
    own = scenario.overrides.get("ota_fl", {})
    kept = {"ota_fl": {"learning": own["learning"]}} if "learning" in own else {}
    return scenario.model_copy(update={"overrides": kept})


def on_fl_terms(scenario: Scenario) -> Scenario:
    """Give distillation the link and privacy of federated learning."""
    own = scenario.overrides.get("ota_fl", {})
    return changed(scenario, {section: own[section] for section in ("radio", "privacy") if section in own})
