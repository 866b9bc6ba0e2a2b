"""Random releases, and headers for ledgers in tests."""

import numpy as np

from airdistill.privacy.ledger_header import LedgerHeader
from airdistill.privacy.release import Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import TRUST_MODELS

TERMS = {
    "uplink": "knowledge", "releases": "private", "planned_rounds": 5, "sampling": "none", "transceiver": "optimal",
    "device_data": "the same",
    "constants": {"grad_lipschitz": 22.0, "model_lipschitz": 7.7, "grad_norm_bound": 4.0, "loss_bound": 2.5},
}  # fmt: skip

FORMAT = {"format": 1}  # of the ledgers' headers; `both_formats` changes it


def both_formats(request, monkeypatch):
    """The body of an autouse fixture with params=[1, 2]: every test of a file plays ledgers of both formats."""
    monkeypatch.setitem(FORMAT, "format", request.param)
    return request.param


def random_release(round_index, num_devices=3, num_rows=4, seed=0, noise=1.0):
    """Uneven weights, sensitivities and noise; the last device sends nothing of row 0."""
    rng = np.random.default_rng((seed, round_index))
    shape = (num_devices, num_rows)
    weights = rng.uniform(0.1, 0.5, shape)
    weights[-1, 0] = 0.0
    return Release(
        round_index,
        weights,
        {model: rng.uniform(0.01, 1.4, shape) for model in SENSITIVITY_MODELS},
        {trust: noise * rng.uniform(0.5, 2.0, shape) for trust in TRUST_MODELS},
    )


def header(mu=10.0, num_devices=3, num_rows=4, **changes):
    per_device = np.ones(num_devices)
    given = {
        "name": "test", "scheme": "ota_fd", "payload": "knowledge", "num_rows": num_rows, "epsilon": 8.0 * per_device,
        "delta": 1e-5 * per_device, "mu": mu * per_device, "sensitivity": "device", "trust": "fleet_noise",
        "accountant": "exact", "relabel": False, "noise": "seeded", "terms": TERMS, **FORMAT,
    }  # fmt: skip
    return LedgerHeader(**(given | changes))
