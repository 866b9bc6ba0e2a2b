"""Normalisation is fitted on the public samples and on nothing else."""

import numpy as np
import pytest

import airdistill as ad
from airdistill.data.normalization import Normalization
from airdistill.data.public import load_data, normalised
from airdistill.errors import InputError

RNG = np.random.default_rng(12)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((50, 6), (0,)),
        ((50, 4, 5), (0, 1, 2)),
        ((50, 3, 8, 7), (0, 2, 3)),
        ((50, 8, 7, 3), (0, 1, 2)),
        ((50, 2, 3, 2, 2), (0, 1, 2, 3, 4)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_and_features_have_mean_0_and_variance_1(shape, axes, dtype):
    offsets = np.arange(shape[-1] if 1 < len(shape) < 5 else 1)
    samples = np.clip(RNG.normal(100 + 10 * offsets, 5 + offsets, shape), 0, 255).astype(dtype)
    result = Normalization.of(samples)(samples)
    assert result.dtype == np.float32
    assert result.mean(axis=axes, dtype=np.float64) == pytest.approx(0, abs=1e-5)
    assert result.std(axis=axes, dtype=np.float64) == pytest.approx(1, abs=1e-5)
    wide = samples.astype(np.float64)
    expected = (wide - wide.mean(axis=axes, keepdims=True)) / wide.std(axis=axes, keepdims=True)
    assert result == pytest.approx(expected, abs=1e-4)


def test_a_constant_feature_is_only_centred():
    samples = np.stack([np.full(9, 0.1), np.arange(9.0)], axis=1)
    assert np.array_equal(Normalization.of(samples)(samples)[:, 0], np.zeros(9))


@pytest.fixture
def changes(tmp_path):
    labels, samples = np.arange(90) % 3, RNG.integers(0, 256, (90, 8, 8, 3)).astype(np.uint8)
    samples[60:] //= 2  # the test set, of which the public samples are a part, is darker
    arrays = {"x_train": samples[:60], "y_train": labels[:60], "x_test": samples[60:], "y_test": labels[60:]}
    np.savez(tmp_path / "a.npz", **arrays)
    return [
        f"data.dataset={tmp_path / 'a.npz'}", "fleet.devices=2", "data.samples_per_device=20", "public.samples=20",
        "learning.model=mlp-4", "data.normalization=public",
    ]  # fmt: skip


def test_only_public_samples_decide(changes):
    scenario = ad.load("quick", changes)
    dataset, public = load_data(scenario)
    fixed, stored = load_data(ad.load("quick", changes[:-1]))
    assert public.samples.mean(axis=(0, 1, 2)) == pytest.approx(0, abs=1e-5)
    assert dataset.x_train.mean() > 0.5  # brighter than the public ones
    normalise = Normalization.of(stored.samples)
    assert np.array_equal(dataset.x_train, normalise(fixed.x_train))
    assert np.array_equal(dataset.x_test, normalise(fixed.x_test))
    assert np.array_equal(normalised(fixed.x_train, scenario), dataset.x_train)
    assert fixed.x_train.dtype == np.uint8
    assert "normalization" not in ad.load("quick", changes[:-1]).model_dump()["data"]


def test_a_run_uses_it(tmp_path, changes):
    losses = []
    for how in ("fixed", "public"):
        scenario = ad.load("quick", [*changes, f"data.normalization={how}"])
        losses.append(ad.run(scenario, "local_only", rounds=1, out=tmp_path / how).rounds[0]["loss"])
    assert losses[0] != losses[1]


def test_without_public_samples_it_is_refused():
    with pytest.raises(InputError, match=r'data\.normalization = "public": is fitted on public samples, and there are'):
        ad.load("quick", ["data.normalization=public"])
