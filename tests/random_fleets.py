"""Random fleets to test the closed forms with: unequal devices, different μ, missing classes."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import ClassMeans
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.privacy.sensitivity import TrajectoryDynamics, required_noise_var

DYNAMICS = TrajectoryDynamics(0.01, 1.0, 1.0, 1.0)
TRUSTS = ("receiver_noise", "fleet_noise", "own_noise")


@dataclass(frozen=True)
class RandomFleet:
    class_counts: np.ndarray
    channel: np.ndarray
    peak_power_w: np.ndarray
    channel_noise_var: float
    mu: np.ndarray
    model: str
    num_rounds: int

    @property
    def required(self):
        return required_noise_var(self.class_counts, self.mu, self.num_rounds, self.model)

    @property
    def weights(self):
        return self.class_counts / np.maximum(self.class_counts.sum(axis=0), 1)

    @property
    def link_power_w(self):
        return np.abs(self.channel) ** 2 * self.peak_power_w


def random_fleet(seed: int) -> RandomFleet:
    rng = np.random.default_rng(seed)
    num_devices, num_classes = rng.integers(1, 7), rng.integers(2, 5)
    counts = rng.integers(1, 60, (num_devices, num_classes))
    counts[rng.random(counts.shape) < 0.25] = 0
    counts[counts.sum(axis=1) == 0, 0] = 7
    if rng.random() < 0.2:
        counts[:, -1] = 0
        counts[counts.sum(axis=1) == 0, 0] = 7
    gauss = rng.standard_normal((2, num_devices))
    return RandomFleet(
        class_counts=counts,
        channel=(gauss[0] + 1j * gauss[1]) * 10 ** rng.uniform(-1, 1, num_devices),
        peak_power_w=10 ** rng.uniform(-1, 1, num_devices),
        channel_noise_var=0.0 if rng.random() < 0.1 else float(10 ** rng.uniform(-3, 2)),
        mu=np.where(rng.random(num_devices) < 0.1, np.inf, 10 ** rng.uniform(-2, 2, num_devices)),
        model=str(rng.choice(["paper", "class_mean", "device"])),
        num_rounds=int(rng.integers(1, 50)),
    )


fleets = st.integers(0, 10**9).map(random_fleet)


def uplink_of(fleet: RandomFleet, trust: str, **choices) -> SuperposedUplink:
    unknown = np.full(len(fleet.mu), np.nan)  # ε and δ are in μ already
    realised = RealisedFleet(fleet.class_counts, fleet.peak_power_w, unknown, unknown, fleet.mu)
    payload = ClassMeans(realised, choices.pop("model", fleet.model), False, DYNAMICS)
    return SuperposedUplink(realised, fleet.channel_noise_var, trust, payload, **choices)
