import numpy as np
import pytest
from random_releases import header, random_release

from airdistill.audit.second_opinion import dp_event, pld_epsilon
from airdistill.privacy.ledger import Ledger


@pytest.mark.parametrize(("model", "relabel"), [("device", False), ("class_mean", False), ("class_mean", True)])
def test_dp_accountings_pld_gives_the_same_epsilon_within_a_thousandth(model, relabel):
    """Uneven rounds, each its own Gaussian mechanism."""
    ledger = Ledger(header(sensitivity=model, relabel=relabel))
    for t in range(1, 13):
        ledger.charge(random_release(t))
    for device in (0, 2):
        theirs = pld_epsilon(dp_event(ledger, device), 1e-5)
        assert theirs == pytest.approx(ledger.epsilon()[device], abs=1e-3)


def test_equal_rounds_are_one_event():
    ledger = Ledger(header())
    for _ in range(40):
        ledger.charge(random_release(1, noise=20.0))
    event = dp_event(ledger, 1)
    assert len(event.events) == 1
    assert event.events[0].count == 40
    assert pld_epsilon(event, 1e-5) == pytest.approx(ledger.epsilon()[1], abs=1e-3)


def test_a_non_private_release_has_infinite_epsilon_and_no_release_has_zero():
    unprotected = Ledger(header(enforced=False))
    unprotected.charge(random_release(1, noise=0.0))
    assert pld_epsilon(dp_event(unprotected, 0), 1e-5) == np.inf
    assert pld_epsilon(dp_event(Ledger(header()), 0), 1e-5) == 0
