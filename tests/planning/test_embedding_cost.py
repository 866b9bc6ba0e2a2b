"""The foreseen size of an embedding, compared with fitted ones, and where a plan states it."""

import json

import numpy as np
import pytest
import torch
from in_process import exit_code
from small_worlds import small_scenario, write_dataset

from airdistill.learning import contrastive
from airdistill.learning.cluster_features import fit_clusters
from airdistill.learning.embeddings import fit_embedding
from airdistill.learning.fleet import Engine
from airdistill.planning.what_if.feature_means import _bytes_of, _encoder, embedding_cost
from airdistill.schemes.registry import plan_run
from airdistill.units import with_prefix

SHAPES = {"grey": (9, 11), "colour": (3, 12, 9), "vector": (13,)}


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setenv("AIRDISTILL_CACHE", "off")
    monkeypatch.setattr(contrastive, "_CPU_PASSES", 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("raw", "vector"), ("raw", "colour"), ("random", "vector"), ("random", "grey"), ("patches", "grey"),
        ("patches", "colour"), ("contrastive", "grey"), ("contrastive", "colour"), ("patches+contrastive", "colour"),
        ("clusters", "grey"), ("clusters", "vector"),
    ],
)  # fmt: skip
def test_the_foreseen_size_is_that_of_a_fitted_embedding(tmp_path, name, kind):
    write_dataset(tmp_path / "blobs.npz", features=SHAPES[kind], num_test=100)
    changes = (f"public.embedding={name}", "public.features=6", "public.samples=80")
    made = plan_run(small_scenario(tmp_path, *changes), "feature_means")
    found = embedding_cost(made)
    public = torch.from_numpy(np.load(tmp_path / "blobs.npz")["x_test"][:80].astype(np.float32))
    if name == "clusters":
        fitted = fit_clusters(public[:, None] if kind == "grey" else public, 6, Engine(), 0)
    else:
        fitted = fit_embedding(name, public, 6, seed=0)
    assert (found.embedding, found.features, found.cpu_bytes) == (name, 6, fitted.num_bytes)
    assert (found.cpu_bytes == found.cuda_bytes) == ("contrastive" not in name)


def test_the_size_with_many_public_images_has_the_most_centres():
    """13.2 MB of MNIST: 400 filters of grey patches in 4 × 4 regions, on both sides, projected to 256 features."""
    base = 2 * 400 * 16
    expected = 4 * (2 + 400 * 37 + 1 + 1 + base + base * 256)
    assert _bytes_of("patches", (1, 28, 28), 3000, 256, "cpu") == expected == 13_217_616


@pytest.mark.parametrize(("device", "width"), [("cpu", 16), ("cuda", 96)])
def test_an_encoder_has_the_foreseen_numbers(device, width):
    recipe = contrastive.Recipe.of(torch.Size((100, 3, 16, 16)), torch.device(device))
    state = contrastive.Encoder(3, width).state_dict()
    numbers = sum(value.numel() for value in state.values() if value.is_floating_point())
    assert (recipe.width, numbers, 4 * width) == (width, *_encoder(3, width))


def test_a_plan_states_the_size(capsys, few_digits):
    few = ("fleet.devices=4", "data.samples_per_device=60", f"data.dataset={few_digits}", "learning.rounds=2")
    small = tuple(word for change in few for word in ("--set", change))
    public = (*small, "--set", "public.samples=40", "--set", "data.partition=iid", "--scheme", "feature_means")
    own = ("--set", "public.embedding=torch.nn:Flatten", "--set", "public.features=4")
    for changes in ((), own):
        assert exit_code("plan", "quick", *public, *changes, "--json") == 0
        stated = json.loads(capsys.readouterr().out)["embedding_cost"]
        assert stated["cpu_bytes"] == (None if changes else stated["cuda_bytes"])
        assert exit_code("plan", "quick", *public, *changes) == 0
        words = "the size of your own network" if changes else f"{with_prefix(stated['cpu_bytes'], 'B')}, sent to the"
        assert words in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert exit_code("plan", "quick", *small, "--json") == 0
    assert json.loads(capsys.readouterr().out)["embedding_cost"] is None
