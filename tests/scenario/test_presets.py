"""The presets against the table of the theory, written out by hand."""

import pytest

from airdistill.scenario import load
from airdistill.scenario.loading import preset_names

RANGES = ((0.001, 0.1), (1e-11, 1e-9))
TARGET = ((8.0,), (1e-5,))
UNSOUND = ("paper", "paper", "receiver_noise")
SOUND = ("device", "exact", "fleet_noise")

# name: devices, samples, (ε, δ), privacy choices, noise W, axis, γ, η0, epochs, batch, rounds, T_max
TABLE = {
    "paper": (50, 1200, RANGES, UNSOUND, 5e-15, "complex", 1, 0.01, 1, 60, "optimal", 2000),
    "paper-literal": (50, 1200, RANGES, UNSOUND, 1e-8, "real", 1, 0.01, 0, 60, "optimal", 2000),
    "quick": (20, 300, TARGET, SOUND, 5e-15, "complex", 1, 0.05, 1, 60, 60, 2000),
    "device-level": (50, 1200, TARGET, SOUND, 5e-15, "complex", 1, 0.01, 1, 60, "optimal", 400),
    "small-data": (200, 60, TARGET, SOUND, 5e-15, "complex", 5, 0.05, 1, 20, 100, 2000),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_preset_has_the_numbers_of_the_table(name):
    devices, samples, target, choices, noise_w, axis, weight, lr, epochs, batch, rounds, most = TABLE[name]
    scenario = load(name)
    privacy, radio, learning, data = scenario.privacy, scenario.radio, scenario.learning, scenario.data
    assert (scenario.num_devices, data.samples_per_device.numbers) == (devices, (samples,))
    assert (data.dataset, data.partition) == ("mnist", "iid")
    assert (privacy.epsilon.numbers, privacy.delta.numbers) == target
    assert (privacy.sensitivity, privacy.accountant, privacy.trust) == choices
    assert (radio.noise_power, radio.noise, radio.peak_power.numbers) == (noise_w, axis, (1e-3,))
    assert (learning.distill_weight, learning.initial_lr) == (weight, lr)
    assert (learning.local_epochs, learning.batch_size) == (epochs, batch)
    assert (learning.rounds, learning.max_rounds) == (rounds, most)


@pytest.mark.parametrize("name", preset_names())
def test_all_presets_share_the_link_and_the_constants(name):
    scenario = load(name)
    radio, constants = scenario.radio, scenario.constants
    assert radio.distance.numbers == (100, 500)
    assert (radio.carrier, radio.path_loss_exponent, radio.fading, radio.slot) == (915e6, 3, "rayleigh", 3.6e-6)
    assert (constants.grad_lipschitz, constants.model_lipschitz) == (22, 7.7)
    assert (constants.grad_norm_bound, constants.loss_bound) == (4, 2.5)


@pytest.mark.parametrize(("name", "devices"), [("skewed", 200), ("skewed-50", 50)])
def test_presets_of_a_public_set(name, devices):
    scenario = load(name)
    assert (scenario.num_devices, scenario.data.partition, scenario.data.classes_per_device) == (devices, "shards", 2)
    assert (scenario.public.samples, scenario.public.source, scenario.learning.rounds) == (3000, "test", 1)
    assert (scenario.privacy.epsilon.numbers, scenario.privacy.delta.numbers) == TARGET
    assert (scenario.privacy.sensitivity, scenario.privacy.accountant, scenario.privacy.trust) == SOUND
