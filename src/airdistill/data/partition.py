"""The partition of the training set: the samples of each device, and its number of samples of every class.

`iid` cuts a shuffled training set into pieces. `dirichlet` draws every device's class proportions from a Dirichlet
distribution. `shards` gives every device samples of exactly `classes_per_device` classes. A sample belongs to at most
one device, unless the scenario resamples: every device then draws from the whole training set, each sample at most
once, and devices may hold samples of others. A fleet may then be larger than the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.data.public import private_labels
from airdistill.errors import Described, InputError
from airdistill.scenario.model import Scenario
from airdistill.stages import report_stage
from airdistill.streams import stream

_STAGE = "samples drawn for devices"


@dataclass(frozen=True)
class Partition:
    """`indices[device]` are positions in the training set; `class_counts` is `[device, class]`."""

    indices: tuple[IntArray, ...]
    class_counts: IntArray


def class_counts(scenario: Scenario) -> IntArray:
    """The number of samples `[device, class]`: declared in the scenario, or from the partition of the data."""
    if scenario.data.class_counts is not None:
        return np.array(scenario.data.class_counts, dtype=np.int64)
    return assign_samples(scenario, private_labels(scenario)).class_counts


def assign_samples(scenario: Scenario, labels: IntArray) -> Partition:
    """Partition a training set with these labels as the scenario specifies; reproducible for a given seed."""
    data = scenario.data
    sizes = _sizes(scenario, len(labels))
    rng = stream(scenario.seed, "partition")
    if data.resample:
        return resampled(scenario, labels, sizes, rng)
    if data.partition == "dirichlet":
        assert data.alpha is not None  # validated with the scenario
        return partition_dirichlet(labels, sizes, data.alpha, rng)
    if data.partition == "shards":
        assert data.classes_per_device is not None  # validated with the scenario
        return partition_shards(labels, sizes, data.classes_per_device, rng)
    return partition_iid(labels, sizes, rng)


def _sizes(scenario: Scenario, num_samples: int) -> IntArray:
    if scenario.data.samples_per_device is not None:
        rng = stream(scenario.seed, "data.samples_per_device")
        return scenario.data.samples_per_device.draw_integers(scenario.num_devices, rng)
    if scenario.num_devices > num_samples:
        rule = f"more devices than the {num_samples} training samples; data.resample lets devices share samples"
        raise InputError("fleet.devices", scenario.num_devices, rule)
    return np.full(scenario.num_devices, num_samples // scenario.num_devices)


def partition_iid(labels: IntArray, sizes: IntArray, rng: np.random.Generator) -> Partition:
    """Cuts a shuffled training set into pieces of the given sizes `[device]`."""
    _check_supply(labels, sizes)
    order = rng.permutation(len(labels))
    indices = np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])
    num_classes = int(labels.max()) + 1
    counts = np.stack([np.bincount(labels[held], minlength=num_classes) for held in indices])
    return Partition(tuple(indices), counts)


def partition_dirichlet(labels: IntArray, sizes: IntArray, alpha: float, rng: np.random.Generator) -> Partition:
    """Class proportions of each device from Dir(α, …, α); an exhausted class is replaced by the others."""
    _check_supply(labels, sizes)
    supply = np.bincount(labels)
    counts = np.zeros((len(sizes), len(supply)), dtype=np.int64)
    for done, device in enumerate(rng.permutation(len(sizes)), start=1):
        report_stage(_STAGE, done, len(sizes))
        shares = rng.dirichlet(np.full(len(supply), alpha))
        counts[device] = _draw_classes(int(sizes[device]), shares, supply, rng)
        supply = supply - counts[device]
    return _assign(labels, counts, rng)


def _draw_classes(size: int, shares: FloatArray, supply: IntArray, rng: np.random.Generator) -> IntArray:
    """The number of samples of each class for one device, within the supply."""
    taken = np.zeros_like(supply)
    while (missing := size - taken.sum()) > 0:
        left = supply - taken
        available = np.where(left > 0, shares, 0.0)
        if available.sum() < 1e-12:  # all classes with a positive proportion are exhausted
            available = left.astype(np.float64)
        taken += np.minimum(rng.multinomial(missing, available / available.sum()), left)
    return taken


def partition_shards(labels: IntArray, sizes: IntArray, classes_per_device: int, rng: np.random.Generator) -> Partition:
    """Give every device exactly `classes_per_device` classes, in numbers as even as the supply allows."""
    _check_supply(labels, sizes)
    supply = np.bincount(labels)
    _check_classes(classes_per_device, sizes, supply)
    holds = _assign_classes(len(sizes), classes_per_device, supply, rng)
    return _assign(labels, _even_shares(holds, sizes, supply), rng)


def _check_classes(classes_per_device: int, sizes: IntArray, supply: IntArray) -> None:
    num_present = int(np.count_nonzero(supply))
    if classes_per_device > num_present:
        raise InputError("data.classes_per_device", classes_per_device, f"the data has {num_present} classes")
    if classes_per_device > sizes.min():
        rule = f"a device has only {sizes.min()} samples"
        raise InputError("data.classes_per_device", classes_per_device, rule)


def _assign_classes(num_devices: int, per_device: int, supply: IntArray, rng: np.random.Generator) -> BoolArray:
    """Which device holds which class, `[device, class]`; each class has a number of slots proportional to its supply.

    A class with as many slots left as there are devices left is assigned to every one of them, and so the assignment
    never fails.
    """
    slots = _proportional_slots(num_devices * per_device, supply, num_devices)
    holds = np.zeros((num_devices, len(supply)), dtype=np.bool_)
    for assigned, device in enumerate(rng.permutation(num_devices)):
        must = slots == num_devices - assigned
        may = np.where(must, 0, slots)
        chosen = np.flatnonzero(must)
        num_free = per_device - len(chosen)
        if num_free > 0:
            free = rng.choice(len(supply), size=num_free, replace=False, p=may / may.sum())
            chosen = np.concatenate([chosen, free])
        holds[device, chosen] = True
        slots[chosen] -= 1
    return holds


def _proportional_slots(total: int, supply: IntArray, most: int) -> IntArray:
    """Distribute `total` slots in proportion to the supply by largest remainders, at most `most` per class."""
    slots = np.zeros_like(supply)
    while (missing := total - slots.sum()) > 0:
        weight = np.where(slots < most, supply, 0)
        ideal = missing * weight / weight.sum()
        whole = np.minimum(np.floor(ideal).astype(np.int64), most - slots)
        if whole.sum() == 0:
            winners = np.argsort(-(ideal - np.floor(ideal)), kind="stable")[:missing]
            whole[winners] = (slots[winners] < most) & (supply[winners] > 0)
        slots += whole
    return slots


def _even_shares(holds: BoolArray, sizes: IntArray, supply: IntArray) -> IntArray:
    """Counts `[device, class]` with the given sizes on the assigned classes, as even as the supply allows."""
    for slack in (0.1, 0.2, 0.3, 0.5, 1.0):
        counts = _shares_within(slack, holds, sizes, supply)
        if counts is not None:
            return counts
    rule = "too many for shards of this data: a class runs out; lower it"
    raise InputError("data.samples_per_device", Described(f"{sizes.sum()} in all"), rule)


def _shares_within(slack: float, holds: BoolArray, sizes: IntArray, supply: IntArray) -> IntArray | None:
    """The counts with the least total deviation from even ones, each within a fraction `slack`; None if infeasible.

    This is a linear programme in the surplus and shortfall of every assigned class. Its constraint matrix is totally
    unimodular, and so the vertex that the simplex method finds is integral.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack

    device, klass = np.nonzero(holds)
    num = len(device)
    even = (sizes // holds.sum(axis=1))[device]
    of_device = csr_array((np.ones(num), (device, np.arange(num))), shape=(len(sizes), num))
    of_class = csr_array((np.ones(num), (klass, np.arange(num))), shape=(len(supply), num))
    most = np.ceil(slack * even)
    result = linprog(
        np.ones(2 * num),
        A_eq=hstack([of_device, -of_device]),
        b_eq=sizes - of_device @ even,
        A_ub=hstack([of_class, -of_class]),
        b_ub=supply - of_class @ even,
        bounds=np.stack([np.zeros(2 * num), np.concatenate([most, np.minimum(most, even - 1)])], axis=1),
        method="highs-ds",
    )
    if not result.success:
        return None
    counts = np.zeros(holds.shape, dtype=np.int64)
    counts[device, klass] = even + np.rint(result.x[:num] - result.x[num:]).astype(np.int64)
    return counts


def _assign(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> Partition:
    """Draw every device's samples at random within each class, according to the counts."""
    pieces = []
    for klass in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(labels == klass))
        pieces.append(np.split(members[: counts[:, klass].sum()], np.cumsum(counts[:, klass])[:-1]))
    indices = tuple(np.concatenate([piece[device] for piece in pieces]) for device in range(len(counts)))
    return Partition(indices, counts)


def _check_supply(labels: IntArray, sizes: IntArray) -> None:
    if sizes.sum() > len(labels):
        asked, rule = Described(f"{sizes.sum()} in all"), "data.resample lets devices share samples"
        raise InputError("data.samples_per_device", asked, f"the training set has {len(labels)}; {rule}")


def resampled(scenario: Scenario, labels: IntArray, sizes: IntArray, rng: np.random.Generator) -> Partition:
    """Draw every device's samples from the whole training set, whatever the other devices hold.

    No device holds a sample twice: what one record moves is then what it moves without resampling.
    """
    if sizes.max() > len(labels):
        raise InputError("data.samples_per_device", int(sizes.max()), f"the training set has {len(labels)}")
    supply = np.bincount(labels)
    members = [np.flatnonzero(labels == klass) for klass in range(len(supply))]
    wanted_by = _class_draws(scenario, sizes, supply, rng)
    indices, counts = [], np.zeros((len(sizes), len(supply)), dtype=np.int64)
    for device, size in enumerate(sizes.tolist()):
        if wanted_by is None:
            held = rng.choice(len(labels), size, replace=False, shuffle=False)
        else:
            wanted = wanted_by(device)
            held = np.concatenate([rng.choice(members[k], wanted[k], replace=False) for k in np.flatnonzero(wanted)])
        indices.append(held)
        counts[device] = np.bincount(labels[held], minlength=len(supply))
        report_stage(_STAGE, device + 1, len(sizes))
    return Partition(tuple(indices), counts)


def _class_draws(
    scenario: Scenario, sizes: IntArray, supply: IntArray, rng: np.random.Generator
) -> Callable[[int], IntArray] | None:
    """How many samples of each class a device draws; None if classes come as they are in the data."""
    data = scenario.data
    if data.partition == "dirichlet":
        concentration = np.full(len(supply), data.alpha)
        return lambda device: _draw_classes(int(sizes[device]), rng.dirichlet(concentration), supply, rng)
    if data.partition == "shards":
        assert data.classes_per_device is not None  # validated with the scenario
        _check_classes(data.classes_per_device, sizes, supply)
        holds = _assign_classes(len(sizes), data.classes_per_device, supply, rng)
        return lambda device: _even_counts(int(sizes[device]), holds[device], supply)
    return None


def _even_counts(size: int, holds: BoolArray, supply: IntArray) -> IntArray:
    """A device's samples spread evenly over the classes that it holds, the first of which have one more."""
    counts = np.zeros_like(supply)
    classes = np.flatnonzero(holds)
    counts[classes] = size // len(classes)
    counts[classes[: size % len(classes)]] += 1
    if (counts > supply).any():
        klass = int(np.argmax(counts - supply))
        rule = f"a device would hold {counts[klass]} samples of class {klass}, which has {supply[klass]}; lower it"
        raise InputError("data.samples_per_device", size, rule)
    return counts
