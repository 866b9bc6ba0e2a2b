import numpy as np
import pytest

from airdistill.data.synthetic import class_patterns, synthetic_samples


def draw(shape, dtype, seed=0, per_class=50, num_classes=5):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_classes), per_class)
    patterns = class_patterns(num_classes, shape, rng)
    return synthetic_samples(labels, patterns, dtype, rng), labels, patterns


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((28, 28), np.uint8, np.uint8),
        ((16, 16, 3), np.uint8, np.uint8),
        ((3, 16, 16), np.float64, np.float32),
        ((4,), np.float64, np.float32),
    ],
)
def test_samples_have_the_requested_shape_and_type_and_are_reproducible(shape, dtype, kind):
    samples, labels, _ = draw(shape, dtype)
    assert samples.shape == (len(labels), *shape)
    assert samples.dtype == kind
    np.testing.assert_array_equal(samples, draw(shape, dtype)[0])
    assert (samples != draw(shape, dtype, seed=1)[0]).any()


def test_bytes_have_the_brightness_of_mnist_and_floats_unit_variance():
    made = draw((28, 28), np.uint8, num_classes=10)[0] / 255
    assert made.mean() == pytest.approx(0.1307, abs=0.04)
    assert made.std() == pytest.approx(0.3081, abs=0.04)
    floats = draw((40,), np.float64, num_classes=10)[0]
    assert abs(floats.mean()) < 0.1
    assert floats.std() == pytest.approx(1, abs=0.1)


def test_classes_are_separable_and_samples_of_a_class_differ():
    samples, labels, patterns = draw((28, 28), np.float32)
    distances = ((samples[:, None] - patterns[None]) ** 2).sum(axis=(2, 3))
    assert (distances.argmin(axis=1) == labels).mean() > 0.9
    assert np.std(samples[labels == 0], axis=0).mean() > 0.3


def test_images_are_smooth_and_feature_vectors_are_not():
    images, _, _ = draw((28, 28), np.float32)
    features, _, _ = draw((28,), np.float32)
    assert np.corrcoef(images[..., 1:].ravel(), images[..., :-1].ravel())[0, 1] > 0.8
    assert abs(np.corrcoef(features[:, 1:].ravel(), features[:, :-1].ravel())[0, 1]) < 0.3
