"""Correlated noise against dense linear algebra: the matrices, the joint sensitivity, and what a ledger charges."""

import numpy as np
import pytest
from scipy.linalg import toeplitz

from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.chain import LedgerError
from airdistill.privacy.correlation import Correlation
from airdistill.privacy.gaussian import gaussian_mu
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.privacy.ledger_header import LedgerHeader
from airdistill.privacy.release import Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import TRUST_MODELS

BANDED = Correlation("banded", (0.6, 0.3, 0.2))
BUFFERED = Correlation("blt", (0.4, 0.2), (0.9, 0.3))
MATRICES = pytest.mark.parametrize("correlation", [BANDED, BUFFERED], ids=["banded", "blt"])
ROUNDS, DEVICES, MOVED, NOISE = 11, 6, 2.5, 3.0


def dense(correlation, num_rounds=ROUNDS):
    """E, written out."""
    matrix = np.eye(num_rounds)
    for row in range(num_rounds):
        for column in range(row):
            lag = row - column
            if correlation.kind == "banded":
                matrix[row, column] = correlation.weights[lag - 1] if lag <= len(correlation.weights) else 0
            else:
                pairs = zip(correlation.weights, correlation.decays, strict=True)
                matrix[row, column] = sum(weight * decay ** (lag - 1) for weight, decay in pairs)
    return matrix


def weights_of(cycle, num_rounds=ROUNDS):
    """`[round, device]`: different devices, of which each joins every `cycle`-th round."""
    joined = (np.arange(num_rounds)[:, None] - np.arange(DEVICES)) % cycle == 0
    return np.where(joined, np.linspace(0.5, 1.5, DEVICES), 0.0)


@MATRICES
def test_matrix_and_noise_are_those_of_the_definition(correlation):
    matrix, inverse = dense(correlation), np.linalg.inv(dense(correlation))
    assert np.tril(toeplitz(correlation.coefficients(ROUNDS))) == pytest.approx(matrix, abs=1e-15)
    assert correlation.noise_coefficients(ROUNDS) == pytest.approx(inverse[:, 0], abs=1e-14)
    assert correlation.noise_variance(ROUNDS) == pytest.approx((inverse**2).sum(axis=1), rel=1e-13)
    weights = weights_of(3)
    assert correlation.revealed(weights) == pytest.approx(matrix @ weights, abs=1e-14)
    for index in range(ROUNDS):
        earlier = matrix[index, :index] @ weights[:index]
        assert correlation.carried(weights[:index]) == pytest.approx(earlier, abs=1e-15)


@MATRICES
@pytest.mark.parametrize("cycle", [1, 3])
def test_joint_sensitivity_is_reached_and_never_exceeded(correlation, cycle):
    """Against ‖EΔ‖ for shifts of any direction and of norm 1 at most, in the rounds that a device joins."""
    joined = weights_of(cycle)[:, 0] > 0
    bound = (correlation.revealed(joined[:, None].astype(float)) ** 2).sum()
    matrix = dense(correlation)
    assert bound == pytest.approx(np.abs(matrix.T @ matrix)[np.ix_(joined, joined)].sum(), rel=1e-12)
    rng, largest = np.random.default_rng(0), 0.0
    for spread in np.repeat([0.01, 0.3, 10.0], 200):
        shift = np.array([1.0, 0, 0]) + spread * rng.standard_normal((ROUNDS, 3))
        shift *= (joined / np.maximum(np.linalg.norm(shift, axis=1), 1.0))[:, None]
        largest = max(largest, ((matrix @ shift) ** 2).sum())
    assert 0.95 * bound < largest <= bound


def release(correlation, weights, index, **changes):
    """Round `index` of a run with these weights `[round, device]`."""
    carried = dense(correlation, len(weights))[index - 1, : index - 1] @ weights[: index - 1]
    column = np.ones((DEVICES, 1))
    made = {
        "round_index": index,
        "weights": weights[index - 1][:, None],
        "sensitivity": dict.fromkeys(SENSITIVITY_MODELS, MOVED * column),
        "counted_noise_var": dict.fromkeys(TRUST_MODELS, NOISE * column),
        "carried_weights": carried[:, None],
    }
    return Release(**{**made, **changes})


def ledger_of(correlation, path=None, epsilon=np.inf):
    targets = {"epsilon": np.full(DEVICES, epsilon), "delta": np.full(DEVICES, 1e-5)}
    mu = np.full(DEVICES, np.inf) if np.isinf(epsilon) else gaussian_mu(targets["epsilon"], targets["delta"])
    terms = {"releases": "private", "uplink": "gradient", "sampling": "none", "transceiver": "optimal"}
    terms |= {"noise_key": "k", "constants": {"source": "declared"}}
    terms |= {} if correlation is None else {"correlation": correlation.to_dict()}
    header = LedgerHeader(
        "n", "ota_fl", "gradient", 1, **targets, mu=mu, sensitivity="device", trust="fleet_noise", accountant="exact",
        relabel=False, noise="seeded", terms=terms,
    )  # fmt: skip
    return Ledger(header) if path is None else Ledger.begin(header, path)


@MATRICES
@pytest.mark.parametrize("cycle", [1, 3])
def test_every_prefix_costs_its_likelihood_ratio(correlation, cycle):
    """μ² = dᵀΣ⁻¹d of the rounds so far, with the covariance of what was received, at the worst shift."""
    weights, ledger = weights_of(cycle), ledger_of(correlation)
    inverse = np.linalg.inv(dense(correlation))
    for index in range(1, ROUNDS + 1):
        ledger.charge(release(correlation, weights, index))
        covariance = NOISE * inverse[:index] @ inverse[:index].T
        shift = MOVED * weights[:index]
        expected = (shift * np.linalg.solve(covariance, shift)).sum(axis=0)
        assert ledger.squared_mu() == pytest.approx(expected, rel=1e-10)


@MATRICES
def test_a_round_that_is_charged_again_costs_its_likelihood_ratio(correlation, tmp_path):
    """A run charges rounds 1 to 5, loses 4 and 5, and plays them again with other noise. All of it is a transcript."""
    weights, path = weights_of(1), tmp_path / "ledger.jsonl"
    ledger = ledger_of(correlation, path)
    for index in range(1, 6):
        ledger.charge(release(correlation, weights, index))
    other = weights.copy()
    other[3] *= 0.5
    ledger = Ledger.read(path, recorded_rounds=3)
    keys = [ledger.charge(release(correlation, other, index)) for index in (4, 5)]
    assert [key.rsplit("-")[-1] for key in keys] == ["6", "7"]
    # New noise z_1 to z_5 and z'_4, z'_5; the second time rounds 4 and 5 repeat z_1 to z_3 and their own.
    noise = np.zeros((7, 7))
    inverse = np.linalg.inv(dense(correlation, 5))
    noise[:5, :5] = inverse
    noise[5:, [0, 1, 2, 5, 6]] = inverse[3:]
    shift = MOVED * np.vstack([weights[:5], other[3:5]])
    covariance = NOISE * noise @ noise.T
    expected = (shift * np.linalg.solve(covariance, shift)).sum(axis=0)
    assert ledger.squared_mu() == pytest.approx(expected, rel=1e-10)
    assert Ledger.read(path).squared_mu() == pytest.approx(expected, rel=1e-10)


def test_a_ledger_on_disk_is_the_same(tmp_path):
    weights, path = weights_of(3), tmp_path / "ledger.jsonl"
    written = ledger_of(BUFFERED, path)
    for index in range(1, ROUNDS + 1):
        written.charge(release(BUFFERED, weights, index))
    read = Ledger.read(path)
    assert np.array_equal(read.squared_mu(), written.squared_mu())
    assert all(one.same_as(other) for one, other in zip(read.releases, written.releases, strict=True))
    repeated = Ledger.read(path, recorded_rounds=4)
    assert repeated.charge(release(BUFFERED, weights, 5)).endswith("-5")
    assert repeated.num_releases == 5


def test_what_cannot_be_joint_rounds_is_not_charged():
    weights, column = weights_of(1), np.ones((DEVICES, 1))
    ledger = ledger_of(BANDED)
    for index in (1, 2):
        ledger.charge(release(BANDED, weights, index))
    spent = ledger.squared_mu()
    one_less = release(BANDED, weights, 3).carried_weights * np.linspace(1, 1 - 1e-6, DEVICES)[:, None]
    smaller = dict.fromkeys(TRUST_MODELS, 0.999 * NOISE * column)
    unsent = dict.fromkeys(TRUST_MODELS, np.inf * column)
    wider = dict.fromkeys(SENSITIVITY_MODELS, 1.001 * MOVED * column)
    for changes, rule in [
        ({"carried_weights": None}, "carried_weights"),
        ({"carried_weights": one_less}, "carried_weights"),
        ({"counted_noise_var": smaller}, "the same in every round"),
        ({"counted_noise_var": unsent}, "the same in every round"),
        ({"sensitivity": wider}, "the same in every round"),
        ({"round_index": 5}, "every round in turn"),
    ]:
        with pytest.raises(LedgerError, match=rule):
            ledger.charge(release(BANDED, weights, 3, **changes))
    assert np.array_equal(ledger.squared_mu(), spent)
    with pytest.raises(LedgerError, match="no correlated noise"):
        ledger_of(None).charge(release(BANDED, weights, 1))


def test_the_budget_is_that_of_all_rounds_together():
    """Round by round it seems to fit: ten rounds of independent noise would."""
    weights = np.full((10, DEVICES), 1.0)
    alone = 10 * MOVED**2 / NOISE
    ledger = ledger_of(BANDED, epsilon=40.0)
    assert alone < ledger.header.mu[0] ** 2

    def charge_all():
        for index in range(1, 11):
            ledger.charge(release(BANDED, weights, index))

    with pytest.raises(BudgetExceeded, match="not transmitted"):
        charge_all()
    assert 1 < ledger.num_releases < 10


def test_the_certificate_says_how_rounds_are_counted():
    ledger = ledger_of(BUFFERED, epsilon=40.0)
    ledger.charge(release(BUFFERED, weights_of(1), 1))
    stated = " ".join(certificate_of(ledger).statement)
    assert "buffered linear Toeplitz, 2 buffers" in stated
    assert "charged for earlier vectors that it reveals again" in stated


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("banded", (0.5, -0.1)), "not negative"),
        (("banded", (float("nan"),)), "finite"),
        (("blt", (0.5,), ()), "one for each weight"),
        (("blt", (0.5,), (1.0,)), r"\[0, 1\)"),
        (("dense", ()), "must be one of banded, blt"),
    ],
)
def test_matrices_whose_sensitivity_would_be_larger_are_refused(arguments, rule):
    with pytest.raises(ValueError, match=rule):
        Correlation(*arguments)


def test_negative_coefficients_would_be_undercounted():
    """Why they are refused: with e_1 = −0.5 a shift of alternating sign moves more than a constant one."""
    matrix = np.eye(4) - 0.5 * np.eye(4, k=-1)
    alternating = np.array([1.0, -1, 1, -1])
    assert np.linalg.norm(matrix @ alternating) > 1.5 * np.linalg.norm(matrix @ np.ones(4))
