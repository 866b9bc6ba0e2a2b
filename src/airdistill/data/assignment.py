"""What every device of a scenario holds."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import IntArray
from airdistill.data.partition import Partition, partition_dirichlet, partition_iid, partition_shards
from airdistill.data.public import private_labels
from airdistill.errors import InputError
from airdistill.scenario.model import Scenario
from airdistill.streams import stream


def class_counts(scenario: Scenario) -> IntArray:
    """Samples by device and class `[device, class]`: as declared, or as the partition of the data gives them."""
    if scenario.data.class_counts is not None:
        return np.array(scenario.data.class_counts, dtype=np.int64)
    return assign_samples(scenario, private_labels(scenario)).class_counts


def assign_samples(scenario: Scenario, labels: IntArray) -> Partition:
    """Shares the training set out as the scenario says; the same seed gives the same shares."""
    data = scenario.data
    sizes = _sizes(scenario, len(labels))
    rng = stream(scenario.seed, "partition")
    if data.partition == "dirichlet":
        assert data.alpha is not None  # the scenario checked it
        return partition_dirichlet(labels, sizes, data.alpha, rng)
    if data.partition == "shards":
        assert data.classes_per_device is not None  # the scenario checked it
        return partition_shards(labels, sizes, data.classes_per_device, rng)
    return partition_iid(labels, sizes, rng)


def _sizes(scenario: Scenario, num_samples: int) -> IntArray:
    if scenario.data.samples_per_device is not None:
        rng = stream(scenario.seed, "data.samples_per_device")
        return scenario.data.samples_per_device.draw_integers(scenario.num_devices, rng)
    if scenario.num_devices > num_samples:
        rule = f"more devices than the {num_samples} training samples"
        raise InputError("fleet.devices", scenario.num_devices, rule)
    return np.full(scenario.num_devices, num_samples // scenario.num_devices)
