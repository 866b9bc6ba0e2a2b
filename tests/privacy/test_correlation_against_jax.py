"""Correlated noise against jax_privacy, if it is installed: matrices, sensitivities, and the noise itself."""

import numpy as np
import pytest

from airdistill.planning.transceiver.correlated import best_correlation, prefix_variance
from airdistill.privacy.correlation import Correlation

jax = pytest.importorskip("jax")
pytest.importorskip("jax_privacy")

from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz  # noqa: E402

jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize(("num_rounds", "cycle"), [(12, 3), (100, 10), (400, 20)])
def test_banded_matrix_is_theirs(num_rounds, cycle):
    """Ours knows that the last columns have fewer bands left, and is a little better for it."""
    theirs = np.asarray(toeplitz.optimize_banded_toeplitz(num_rounds, cycle, max_optimizer_steps=1000))
    ours = best_correlation("banded", num_rounds, cycle)
    assert ours.coefficients(cycle) == pytest.approx(theirs / theirs[0], abs=0.05)

    def loss(correlation):
        return squared(correlation, num_rounds, cycle) * prefix_variance(correlation, np.ones(num_rounds)).mean()

    reference = Correlation("banded", tuple((theirs / theirs[0])[1:].tolist()))
    assert 0.97 < loss(ours) / loss(reference) <= 1 + 1e-6


def squared(correlation, num_rounds, cycle):
    joined = np.zeros((num_rounds, 1))
    joined[::cycle] = 1
    return float((correlation.revealed(joined) ** 2).sum())


@pytest.mark.parametrize("kind", ["banded", "blt"])
@pytest.mark.parametrize(("num_rounds", "cycle"), [(40, 4), (100, 100)])
def test_sensitivity_and_error_are_theirs(kind, num_rounds, cycle):
    correlation = best_correlation(kind, num_rounds, cycle)
    coefficients = correlation.coefficients(num_rounds)
    theirs = float(toeplitz.minsep_sensitivity_squared(coefficients, cycle, n=num_rounds))
    assert squared(correlation, num_rounds, cycle) == pytest.approx(theirs, rel=1e-9)
    errors = np.asarray(toeplitz.per_query_error(strategy_coef=coefficients, n=num_rounds))
    assert prefix_variance(correlation, np.ones(num_rounds)) == pytest.approx(errors, rel=1e-9)
    inverse = np.asarray(toeplitz.inverse_coef(coefficients, num_rounds))
    assert correlation.noise_coefficients(num_rounds) == pytest.approx(inverse, abs=1e-12)


@pytest.mark.parametrize(("num_rounds", "cycle"), [(100, 10), (100, 100), (400, 20)])
def test_buffered_matrix_is_as_good_as_theirs(num_rounds, cycle):
    theirs = buffered_toeplitz.optimize(
        n=num_rounds, min_sep=cycle, max_participations=-(-num_rounds // cycle), error="mean", max_buffers=3
    )
    reference = Correlation("blt", tuple(map(float, theirs.output_scale)), tuple(map(float, theirs.buf_decay)))
    ours = best_correlation("blt", num_rounds, cycle)
    steps = np.ones(num_rounds)
    losses = [squared(each, num_rounds, cycle) * prefix_variance(each, steps).mean() for each in (ours, reference)]
    assert losses[0] < 1.01 * losses[1]
    assert np.asarray(theirs.toeplitz_coefs(num_rounds)) == pytest.approx(reference.coefficients(num_rounds), rel=1e-9)
