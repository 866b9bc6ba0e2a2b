"""From a scenario and a scheme to the scheme's own plan. Importing it loads no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from airdistill.data.datasets import dataset_summary
from airdistill.data.partition import class_counts
from airdistill.data.public import load_data
from airdistill.errors import AirDistillError, Described, InputError, described, did_you_mean
from airdistill.planning.feature_means import has_own_embedding
from airdistill.planning.fleet import realise_fleet
from airdistill.planning.payloads import Gradient, declared_public
from airdistill.planning.plan import Plan, plan
from airdistill.plugins import load_object
from airdistill.privacy.spending import EarlierRuns
from airdistill.scenario.loading import changed, for_scheme
from airdistill.scenario.model import Scenario
from airdistill.scenario.networks import check_takes, input_shape_of
from airdistill.scenario.radio import Radio
from airdistill.schemes.base import Scheme

_NEGLIGIBLE_NOISE_W = 1e-30


def as_run_by(scheme: Scheme, scenario: Scenario, rounds: int | None = None) -> Scenario:
    """The scenario with a scheme's overrides, as the scheme adapts it."""
    for name in (*scheme.inherits, scheme.name):
        scenario = for_scheme(scenario, name)
    adapted = scheme.adapt(scenario)
    if not isinstance(adapted, Scenario):
        rule = "must return airdistill.scenario.loading.changed(scenario, {section: {field: value}})"
        raise InputError(f"adapt of scheme {scheme.name}", Described(adapted), rule)
    if scheme.releases != "private" and adapted.fleet.participation < 1:
        everyone = {"participation": 1.0, "participation_hidden": False}
        adapted = changed(adapted, {"fleet": everyone})  # sampling is for private schemes
    if scheme.releases != "private":
        adapted = _without_noise_options(adapted)
    if adapted.air.medium == "secure_sum":
        adapted = _without_radio(adapted)
    return adapted if rounds is None else changed(adapted, {"learning": {"rounds": rounds}})


def _without_noise_options(scenario: Scenario) -> Scenario:
    """Cyclic participation and correlated noise are for private schemes."""
    if scenario.privacy.correlation != "none":
        scenario = changed(scenario, {"privacy": {"correlation": "none"}})
    if scenario.fleet.sampling == "cyclic":
        scenario = changed(scenario, {"fleet": {"sampling": "none", "cycle": None}})
    return scenario


def _without_radio(scenario: Scenario) -> Scenario:
    """A secure sum has no fading, no receiver and no channel estimates: plan it as a nearly perfect radio link."""
    perfect = {"gains": [(1.0, 0.0)] * scenario.num_devices, "noise_power": _NEGLIGIBLE_NOISE_W}
    unlimited = {"band": None, "max_eirp": None, "duty_cycle": None}
    antennas = {"device_antenna_dbi": 0.0, "server_antenna_dbi": 0.0, "implementation_loss_db": 0.0}
    removed = {"trace": None, "truncation": 0.0, "csi_error_db": None, "noise_figure_db": None, "noise_density": None}
    return changed(scenario, {"radio": {**perfect, **unlimited, **antennas, **removed}})


def with_fixed_rounds(scenario: Scenario) -> Scenario:
    """The scenario with the constant T of schemes that do not optimise it."""
    return changed(scenario, {"learning": {"rounds": scenario.learning.fixed_rounds}})


def _truncation_threshold(radio: Radio) -> float | str:
    """The truncation threshold of this project's own schemes: the scenario's if it has one, otherwise the optimum.

    Several antennas rarely fade at the same time: no device is truncated.
    """
    return radio.truncation or ("optimal" if radio.antennas == 1 else 0.0)


def with_all_steps(scenario: Scenario, receiver: str, **privacy: str) -> Scenario:
    """The scenario with every step of this project's own schemes; `receiver` takes the place of the linear one.

    A truncation threshold and a receiver that the scenario chooses stay.
    """
    radio, learning = scenario.radio, scenario.learning
    return changed(
        scenario,
        {
            "privacy": {"accountant": "exact", "carry_over": not scenario.fleet.participation_hidden, **privacy},
            "radio": {"transceiver": "optimal", "truncation": _truncation_threshold(radio)},
            "learning": {"receiver": receiver if learning.receiver == "linear" else learning.receiver},
        },
    )


def for_public_set(scenario: Scenario, abstain: bool) -> Scenario:
    """The scenario for public predictions: whole devices are protected, because nothing smaller has a bound.

    Devices abstain as the scenario says, or by the scheme's default.
    """
    public = declared_public(scenario)
    changes = {"public": {"abstain": abstain if public.abstain is None else public.abstain}}
    return changed(scenario, {**changes, "privacy": {"sensitivity": "device"}})


def for_updates(scenario: Scenario, **learning: object) -> Scenario:
    """The scenario for model updates: whole devices are protected, and nothing is distilled."""
    return changed(scenario, {"learning": {"distill_weight": 0.0, **learning}, "privacy": {"sensitivity": "device"}})


def refuse_server_selector(scenario: Scenario) -> None:
    selector = declared_public(scenario).server_selector
    if selector is not None:
        rule = "needs the number of devices that answered, which is private; put it into [overrides.proxy_fd]"
        raise InputError("public.server_selector", selector, rule)


def plan_scheme(scheme: Scheme, scenario: Scenario, earlier: EarlierRuns | None = None) -> Plan:
    """Plan a scenario from `as_run_by`, with what earlier runs have left of every device's budget.

    An exception in the user's own payload, trust or participation model becomes an error that names the line.
    """
    try:
        return _planned(scheme, scenario, earlier)
    except Exception as error:
        if isinstance(error, AirDistillError) or not has_own_code(scheme, scenario):
            raise
        raise AirDistillError(f"planning failed in your own code: {described(error)}") from error


def has_own_code(scheme: Scheme, scenario: Scenario) -> bool:
    """Whether a run executes classes or functions of the user's own, which can raise any exception."""
    return is_users(scheme) or bool(named_code(scenario)) or has_own_embedding(scenario)


def named_code(scenario: Scenario) -> list[tuple[str, str]]:
    """The trust and participation models, receivers and networks of the user's own: the field and the reference."""
    named = [
        ("privacy.trust", scenario.privacy.trust),
        ("fleet.sampling", scenario.fleet.sampling),
        ("learning.receiver", scenario.learning.receiver),
        *(("learning.model", name) for name in scenario.model_names),
        ("public.server_model", "" if scenario.public is None else scenario.public.server_model or ""),
    ]
    return [(field, reference) for field, reference in named if ":" in reference]


def is_users(scheme: Scheme) -> bool:
    """Whether a scheme is a class of the user's own."""
    return not type(scheme).__module__.startswith("airdistill.")


def _planned(scheme: Scheme, scenario: Scenario, earlier: EarlierRuns | None) -> Plan:
    if ":" in scenario.learning.receiver:  # a plan does not call it, and must not promise a run that cannot begin
        load_object(scenario.learning.receiver, "learning.receiver")
    if scheme.one_model and len(set(scenario.model_names)) > 1:
        mixed = Described(" and ".join(sorted(set(scenario.model_names))))
        rule = f"{scheme.name} needs one model for all devices; only distillation works with different models"
        raise InputError("fleet.groups", mixed, rule)
    if (scheme.one_model or scheme.uplink_kind == Gradient.kind) and scenario.learning.optimizer != "sgd":
        rule = (
            f"{scheme.name} makes one step for all devices, which has no state; set learning.optimizer = "
            f'"sgd" in [overrides.{scheme.name}]'
        )
        raise InputError("learning.optimizer", scenario.learning.optimizer, rule)
    if scenario.data.class_counts is None:
        check_models(scenario)
    length = model_length(scheme, scenario)
    if scenario.public is not None and scheme.payload.needs_public_set:
        fleet = realise_fleet(scenario, earlier)
        scenario = scheme.payload.chosen(scenario, fleet)
        if scenario.data.class_counts is None:
            dataset, _ = load_data(scenario)  # a public set that cannot be loaded is refused now
            length = scheme.payload.length_for(scenario, fleet, dataset.x_train.shape[1:])
    made = plan(scenario, scheme.uplink_kind, length, earlier if scheme.releases == "private" else None)
    made = made if scheme.releases == "private" else _without_protection(made, scheme)
    return replace(made, warnings=(*made.warnings, *_misspelt_overrides(scheme, scenario)))


def _misspelt_overrides(scheme: Scheme, scenario: Scenario) -> Iterator[str]:
    """Overrides of a scheme that does not exist change nothing; but users' own schemes may have any name."""
    from airdistill.schemes.registry import SCHEMES  # which imports this module

    for name in scenario.overrides:
        meant = "" if name in SCHEMES or name == scheme.name else did_you_mean(name, SCHEMES)
        if meant:
            yield f"overrides.{name}: no built-in scheme has this name{meant}"


def check_models(scenario: Scenario) -> None:
    """Raise unless every device's model can take its samples. Only a user's own model is built, which loads PyTorch."""
    found = dataset_summary(scenario.data.dataset)
    shape, num_classes = input_shape_of(found.sample_shape), int(found.y_train.max()) + 1
    field = "fleet.groups" if scenario.fleet.groups else "learning.model"
    if scenario.public is not None and scenario.public.server_model is not None:
        check_takes(scenario.public.server_model, shape, "public.server_model")
    for name in dict.fromkeys(scenario.model_names):
        if ":" not in name:
            check_takes(name, shape, field)
            continue
        import torch

        from airdistill.learning.models import build_model, has_batch_norm

        model = build_model(name, shape, num_classes, np.random.default_rng(0), torch.float32, field)
        if has_batch_norm(model):
            _check_batches(scenario, name, field)


def _check_batches(scenario: Scenario, name: str, field: str) -> None:
    """Raise if batch normalisation would see a batch of one sample, which has no variance."""
    samples, learning = class_counts(scenario).sum(axis=1), scenario.learning
    own = [device for device, each in enumerate(scenario.model_names) if each == name and samples[device] == 1]
    if own or (learning.local_epochs > 0 and learning.batch_size == 1):
        cause = f"device {own[0]} has one sample" if own else "learning.batch_size is 1"
        rule = f"has batch normalisation, which needs two samples in a batch, and {cause}"
        raise InputError(field, name, f"{rule}; give more, or use nn.GroupNorm")


def _without_protection(made: Plan, scheme: Scheme) -> Plan:
    """The plan of a non-private scheme: only the rounds and the slots remain."""
    bare = scheme.releases == "bare"
    epsilon = np.full(made.fleet.num_devices, np.inf if bare else 0.0)
    no_power = np.zeros(made.fleet.num_devices)
    forecast = replace(
        made.forecast,
        effective_noise_var=np.zeros_like(made.forecast.effective_noise_var),
        effective_noise=0.0,
        effective_noise_median=0.0,
        effective_noise_quantile=0.0,
        signal_power_w=no_power,
        noise_power_w=no_power,
        round_joules=0.0,
        inverse_counted_noise=np.full(made.forecast.inverse_counted_noise.shape, np.inf if bare else 0.0),
    )
    word = "sends its payload without noise over a perfect channel: nothing is protected" if bare else "sends nothing"
    return replace(
        made,
        forecast=forecast,
        epsilon_by_model=dict.fromkeys(made.epsilon_by_model, epsilon),
        assumptions=(f"{scheme.name} {word}.",),
        warnings=(f"{scheme.name} {word}; it uses only the number of rounds of the private plan.",),
    )


def model_length(scheme: Scheme, scenario: Scenario) -> int | None:
    """The length of a payload's vectors if it follows from the model's size; None if it does not."""
    payload = scheme.payload
    return payload.length_of_model(scenario, num_parameters(scenario)) if payload.needs_model_size else None


def num_parameters(scenario: Scenario) -> int:
    """The number of parameters of the model that all devices share. It builds the model, and so it loads PyTorch."""
    from airdistill.learning.models import count_parameters
    from airdistill.learning.samples import input_shape

    dataset, _ = load_data(scenario)
    return count_parameters(scenario.model_names[0], input_shape(dataset.x_train), dataset.num_classes)
