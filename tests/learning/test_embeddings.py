"""Public embeddings: whitening, patch responses computed slowly, what all of them have in common, and the cache."""

import inspect
import logging

import numpy as np
import pytest
import torch
from torch import nn

from airdistill.data.datasets import load_dataset
from airdistill.errors import InputError
from airdistill.learning import contrastive, embeddings, fits
from airdistill.learning.base_features import PatchFeatures, Scale, spherical_k_means
from airdistill.learning.embeddings import fit_embedding, leading, principal_directions
from airdistill.learning.samples import to_tensor

NAMES = ["raw", "random", "patches"]
TRAINED = ["contrastive", "patches+contrastive"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Every test fits for itself, into a folder of its own; an encoder is trained in a few passes."""
    monkeypatch.setenv("AIRDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(contrastive, "_CPU_PASSES", 3)
    monkeypatch.setattr(contrastive, "_CPU_BATCH", 60)
    forget()


def forget():
    fits._memory.clear()


def fits_on_disk():
    return sorted(fits.cache_folder().glob("embedding-*"))


def samples_for(name, digits):
    """Whole digits; for an encoder fewer, and of each the 16 × 16 pixels in the middle."""
    return digits[0][:240, 6:22, 6:22] if name in TRAINED else digits[0]


@pytest.fixture(scope="module")
def digits():
    mnist = load_dataset("mnist")
    return torch.from_numpy(mnist.x_train[:400].copy()), mnist.y_train[:400]


@pytest.fixture(scope="module")
def colour():
    """Images in colour whose pixels resemble their neighbours, as bytes."""
    coarse = torch.rand(120, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    return (nn.functional.interpolate(coarse, size=12, mode="bilinear") * 255).to(torch.uint8)


@pytest.mark.parametrize("name", [*NAMES, "raw+patches", *TRAINED])
def test_public_features_have_mean_zero_and_covariance_one(name, digits):
    samples = samples_for(name, digits)
    features = fit_embedding(name, samples, 40, seed=3).features(samples).numpy().astype(float)
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(features.T @ features / len(features), np.eye(40), atol=1e-5)


def test_raw_features_are_whitened_principal_components(digits):
    """The directions of numpy's singular value decomposition, each up to its sign."""
    pixels = digits[0].numpy().reshape(400, -1) / 255
    left, values, _ = np.linalg.svd(pixels - pixels.mean(axis=0))
    embedding = fit_embedding("raw", digits[0], 20, seed=0)
    found, expected = embedding.features(digits[0]).numpy(), left[:, :20] * np.sqrt(400)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found, expected * signs, atol=2e-3)
    np.testing.assert_allclose(embedding.spectrum[:20], (values**2 / (values**2).sum())[:20], rtol=1e-5)


@pytest.mark.parametrize("shape", [(900, 1500), (1500, 900), (1400, 1300)])
def test_large_problems_find_the_leading_directions_too(shape):
    """Matrices with a known falling spectrum, wide and tall, beyond the size of a full decomposition."""
    rng = np.random.default_rng(0)
    rank = min(shape)
    left, right = (np.linalg.qr(rng.standard_normal((size, 60)))[0] for size in shape)
    given = (left * 0.9 ** np.arange(60)) @ right.T * np.sqrt(shape[0])
    mean, directions, variances = principal_directions(torch.from_numpy(given).float(), 20)
    centred = given - given.mean(axis=0)
    expected = np.linalg.svd(centred, compute_uv=False)[:20] ** 2 / shape[0]
    assert rank > 20
    np.testing.assert_allclose(variances[:20], expected, rtol=1e-4)
    np.testing.assert_allclose(mean, given.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(directions @ directions.T, np.eye(20), atol=1e-9)


def test_subspace_iteration_spans_the_space_of_a_full_decomposition():
    values = 0.97 ** torch.arange(1300, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(1300, 1300, generator=torch.Generator().manual_seed(2)).double()).Q
    found = leading(basis * values @ basis.T, 30)
    overlaps = torch.linalg.svdvals(basis[:, :30].T @ found)
    assert float(overlaps.min()) > 0.999


@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_normalised_floats_give_the_same_features(name, digits):
    floats = to_tensor(digits[0].numpy(), torch.float32, torch.device("cpu"))
    one = fit_embedding(name, digits[0], 30, seed=0).features(digits[0])
    other = fit_embedding(name, floats, 30, seed=0).features(floats)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_every_channel_has_its_own_scale(colour):
    """As `data.normalization` gives them: each channel with its own mean and deviation."""
    moved = colour.float() * torch.tensor([1, 0.2, 7.0])[:, None, None] - torch.tensor([5, 0, 1.0])[:, None, None]
    one, other = (fit_embedding("patches", each, 20, seed=0).features(each) for each in (colour, moved))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [*NAMES, *TRAINED])
def test_a_row_depends_on_its_own_sample_alone(name, digits):
    samples = samples_for(name, digits)
    embedding = fit_embedding(name, samples, 30, seed=0)
    whole = embedding.features(samples)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(5))
    # Whitening enlarges what rounding leaves in directions in which an encoder's features hardly vary.
    rounding = 5e-5 if name in TRAINED else 2e-6
    torch.testing.assert_close(embedding.features(samples[order]), whole[order], atol=rounding, rtol=0)
    for chunk in (1, 7, 64):
        torch.testing.assert_close(embedding.features(samples[:70], chunk), whole[:70], atol=rounding, rtol=0)
    assert embedding.features(samples[:0]).shape == (0, 30)


@pytest.mark.parametrize("name", [*NAMES, *TRAINED])
def test_fits_repeat_and_leave_the_global_generators_alone(name, digits, monkeypatch):
    monkeypatch.setenv("AIRDISTILL_CACHE", "off")
    samples, state = samples_for(name, digits), torch.random.get_rng_state()
    one = fit_embedding(name, samples, 20, seed=7)
    assert torch.equal(torch.random.get_rng_state(), state)
    forget()
    torch.rand(3)
    other = fit_embedding(name, samples, 20, seed=7)
    assert one.digest == other.digest


def test_an_encoder_is_trained(digits):
    """By more than its statistics: with another number of passes it has other weights."""
    samples, weights = samples_for("contrastive", digits), []
    for passes in (1, 3):
        recipe = contrastive.Recipe(width=4, passes=passes, batch=60)
        scaled = Scale.of(samples)(samples)
        weights.append(contrastive.train_encoder(scaled, recipe, 0, lambda *_: None).stem.convolution.weight)
    assert float((weights[0] - weights[1]).abs().max()) > 1e-3


def test_an_encoder_in_training_mode_is_refused(digits, monkeypatch):
    """Its statistics would be those of the batch: one record would change the features of others."""
    monkeypatch.setattr(contrastive.Encoder, "train", lambda encoder, _mode=True: nn.Module.train(encoder, True))
    with pytest.raises(InputError, match=r"contrastive.: changes its own stem\.norm\.running_mean"):
        fit_embedding("contrastive", samples_for("contrastive", digits), 20, seed=0)


def forbid_fitting(monkeypatch):
    def refuse(*_given, **_named):
        raise AssertionError("fitted again")

    for owner, name in [
        (embeddings, "train_encoder"),
        (embeddings, "principal_directions"),
        (embeddings.PatchFeatures, "fit"),
        (embeddings.RandomFeatures, "fit"),
    ]:
        monkeypatch.setattr(owner, name, refuse)


@pytest.mark.parametrize("name", [*NAMES, *TRAINED])
def test_a_fit_is_read_from_the_cache(name, digits, monkeypatch):
    """By another process, as it were: for any number of features, and with the same digest and features."""
    samples = samples_for(name, digits)
    made = [fit_embedding(name, samples, width, seed=0) for width in (20, 30)]
    parts = 0 if name == "raw" else len(name.split("+"))
    assert len(fits_on_disk()) == 1 + parts  # one more for the directions
    forget()
    forbid_fitting(monkeypatch)
    for each in made:
        read = fit_embedding(name, samples, each.width, seed=0)
        assert read.digest == each.digest
        assert torch.equal(read.features(samples[:9]), each.features(samples[:9]))
        assert torch.equal(read.spectrum, each.spectrum)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("patches", "truncated"), ("patches", "emptied"), ("patches", "changed"), ("contrastive", "changed")],
)
def test_a_damaged_cache_is_fitted_again(name, damage, digits, caplog):
    samples = samples_for(name, digits)
    made = fit_embedding(name, samples, 20, seed=0)
    intact = {path: path.read_bytes() for path in fits_on_disk()}
    for path, content in intact.items():
        middle = len(content) - 16  # among the numbers: the header is at the front
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"truncated": content[:middle], "emptied": b"", "changed": changed}[damage])
    forget()
    with caplog.at_level(logging.WARNING):
        again = fit_embedding(name, samples, 20, seed=0)
    assert again.digest == made.digest
    assert caplog.text.count("damaged, fitted again") == len(intact) == 2
    assert {path: path.read_bytes() for path in fits_on_disk()} == intact


def test_nothing_is_cached_if_that_is_off(tmp_path, digits, monkeypatch):
    """Not in the folder of the user either. The process remembers: one run needs the embedding several times."""
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("AIRDISTILL_CACHE", "off")
    made = fit_embedding("patches", digits[0], 20, seed=0)
    assert not list(tmp_path.rglob("*"))
    forbid_fitting(monkeypatch)
    assert fit_embedding("patches", digits[0], 20, seed=0).digest == made.digest
    forget()
    with pytest.raises(AssertionError, match="fitted again"):
        fit_embedding("patches", digits[0], 20, seed=0)


def test_digests_tell_embeddings_apart(digits):
    samples = digits[0]
    fits = [
        fit_embedding(name, chosen, width, seed=seed)
        for name, chosen, width, seed in [
            ("patches", samples, 20, 0),
            ("patches", samples, 21, 0),
            ("patches", samples, 20, 1),
            ("patches", samples[:390], 20, 0),
            ("raw", samples, 20, 0),
        ]
    ]
    assert len({each.digest for each in fits}) == len(fits)


def test_there_is_no_way_in_for_labels():
    assert not any("label" in name for name in inspect.signature(fit_embedding).parameters)


def test_the_cost_of_broadcasting_counts_every_number(digits, colour):
    # Scale: lowest number and span of a channel. Then mean and projection, and the weight of the one part.
    assert fit_embedding("raw", digits[0], 20, seed=0).num_bytes == 4 * (2 + 784 + 784 * 20 + 1)
    centres = 50  # the fewest
    base = 2 * centres * 2 * 2
    filters = centres * 3 * 36 + centres + 1
    expected = 4 * (2 * 3 + filters + base + base * 20 + 1)
    assert fit_embedding("patches", colour, 20, seed=0).num_bytes == expected


def slow_patch_features(image, filters, offset, threshold, regions):
    """Patch responses of one image `[channel, row, column]` with loops, in double precision."""
    rows, columns = (side - 5 for side in image.shape[1:])
    sides = np.zeros((2, len(filters), rows, columns))
    for row in range(rows):
        for column in range(columns):
            patch = image[:, row : row + 6, column : column + 6].ravel()
            patch = patch - patch.mean()
            patch = patch / (np.sqrt((patch**2).sum()) + 0.5)
            for centre, each in enumerate(filters):
                response = each @ patch - offset[centre]
                sides[0, centre, row, column] = max(response - threshold, 0)
                sides[1, centre, row, column] = max(-response - threshold, 0)

    def edges(side):
        return [(k * side // regions, -(-(k + 1) * side // regions)) for k in range(regions)]

    return np.sqrt(
        [
            sides[side, centre, top:bottom, left:right].mean()
            for side in range(2)
            for centre in range(len(filters))
            for top, bottom in edges(rows)
            for left, right in edges(columns)
        ]
    )


@pytest.mark.parametrize(("kind", "regions"), [("grey", 4), ("colour", 2)])
def test_patch_features_equal_a_computation_with_loops(kind, regions, digits, colour):
    images = digits[0][:, 4:24, 4:24] if kind == "grey" else colour
    scaled = Scale.of(images)(images)
    fitted = PatchFeatures.fit(scaled, 0, lambda *_: None)
    filters = fitted.filters.flatten(1).double().numpy()[:6]
    part = PatchFeatures(fitted.filters[:6], fitted.offset[:6], fitted.threshold)
    found = part(scaled[7:8])[0].numpy()
    args = scaled[7].double().numpy(), filters, fitted.offset.numpy(), float(fitted.threshold), regions
    np.testing.assert_allclose(found, slow_patch_features(*args), atol=2e-4)
    assert found.max() > 0.1


def test_patch_responses_are_those_of_whitened_patches(digits):
    """Filters, offset and whitening together: the responses to all patches have the covariance C Cᵀ of unit centres."""
    scaled = Scale.of(digits[0])(digits[0])
    fitted = PatchFeatures.fit(scaled, 0, lambda *_: None)
    windows = scaled[:200].unfold(2, 6, 1).unfold(3, 6, 1).flatten(4).permute(0, 2, 3, 1, 4).reshape(-1, 36).double()
    centred = windows - windows.mean(dim=1, keepdim=True)
    patches = centred / (centred.norm(dim=1, keepdim=True) + 0.5)
    responses = patches @ fitted.filters.flatten(1).T.double() - fitted.offset
    assert float(responses.mean(dim=0).abs().max()) < 0.05
    assert float(responses.std()) == pytest.approx(float(fitted.threshold) / 0.25, rel=0.05)
    assert float(responses.var(dim=0).max()) < 1.3  # a unit vector's share of whitened patches


def test_k_means_finds_directions():
    generator = torch.Generator().manual_seed(0)
    true = nn.functional.normalize(torch.randn(5, 20, generator=generator), dim=1)
    points = true.repeat(60, 1) * (1 + torch.rand(300, 1, generator=generator))
    points = points + 0.02 * torch.randn(300, 20, generator=generator)
    centres = spherical_k_means(points, 12, generator, lambda *_: None)
    assert float((true @ centres.T).max(dim=1).values.min()) > 0.99
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(12))


def test_patches_separate_digits_better_than_pixels(digits):
    samples, labels = digits

    def accuracy(name):
        features = fit_embedding(name, samples, 30, seed=0).features(samples).double().numpy()
        targets = np.eye(10)[labels]
        weights = np.linalg.solve(features[:200].T @ features[:200] + 10 * np.eye(30), features[:200].T @ targets[:200])
        return float(((features[200:] @ weights).argmax(axis=1) == labels[200:]).mean())

    assert accuracy("patches") > accuracy("raw") + 0.03
