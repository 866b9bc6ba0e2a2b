"""How samples fall to devices: which indices each device holds, and so how many of every class.

`iid` deals a shuffled deck. `dirichlet` draws every device's class shares from a Dirichlet distribution.
`shards` gives every device exactly so many classes. Each sample goes to one device at most.

What every device of a scenario holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.data.public import private_labels
from airdistill.errors import Described, InputError
from airdistill.scenario.model import Scenario
from airdistill.streams import stream


@dataclass(frozen=True)
class Partition:
    """`indices[device]` are positions in the training set; `class_counts` is `[device, class]`."""

    indices: tuple[IntArray, ...]
    class_counts: IntArray


def partition_iid(labels: IntArray, sizes: IntArray, rng: np.random.Generator) -> Partition:
    """Cuts a shuffled training set into pieces of the given sizes `[device]`."""
    _check_supply(labels, sizes)
    order = rng.permutation(len(labels))
    indices = np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])
    num_classes = int(labels.max()) + 1
    counts = np.stack([np.bincount(labels[held], minlength=num_classes) for held in indices])
    return Partition(tuple(indices), counts)


def partition_dirichlet(labels: IntArray, sizes: IntArray, alpha: float, rng: np.random.Generator) -> Partition:
    """Class shares of each device from Dir(α, …, α); where a class runs out, the others fill its place."""
    _check_supply(labels, sizes)
    supply = np.bincount(labels)
    counts = np.zeros((len(sizes), len(supply)), dtype=np.int64)
    for device in rng.permutation(len(sizes)):
        shares = rng.dirichlet(np.full(len(supply), alpha))
        counts[device] = _draw_classes(int(sizes[device]), shares, supply, rng)
        supply = supply - counts[device]
    return _deal(labels, counts, rng)


def _draw_classes(size: int, shares: FloatArray, supply: IntArray, rng: np.random.Generator) -> IntArray:
    taken = np.zeros_like(supply)
    while (missing := size - taken.sum()) > 0:
        left = supply - taken
        open_shares = np.where(left > 0, shares, 0.0)
        if open_shares.sum() < 1e-12:  # every class that this device wanted has run out
            open_shares = left.astype(np.float64)
        taken += np.minimum(rng.multinomial(missing, open_shares / open_shares.sum()), left)
    return taken


def partition_shards(labels: IntArray, sizes: IntArray, classes_per_device: int, rng: np.random.Generator) -> Partition:
    """Every device holds exactly `classes_per_device` classes, in shares as even as the supply allows."""
    _check_supply(labels, sizes)
    supply = np.bincount(labels)
    num_present = int(np.count_nonzero(supply))
    if classes_per_device > num_present:
        raise InputError("data.classes_per_device", classes_per_device, f"the data has {num_present} classes")
    if classes_per_device > sizes.min():
        rule = f"a device has only {sizes.min()} samples"
        raise InputError("data.classes_per_device", classes_per_device, rule)
    holds = _assign_classes(len(sizes), classes_per_device, supply, rng)
    return _deal(labels, _even_shares(holds, sizes, supply), rng)


def _assign_classes(num_devices: int, per_device: int, supply: IntArray, rng: np.random.Generator) -> BoolArray:
    """Which device holds which class, `[device, class]`: a class has places in proportion to its supply.

    A class with as many places left as there are devices left must be taken now, so the deal always ends well.
    """
    places = _proportional_places(num_devices * per_device, supply, num_devices)
    holds = np.zeros((num_devices, len(supply)), dtype=np.bool_)
    for dealt, device in enumerate(rng.permutation(num_devices)):
        must = places == num_devices - dealt
        may = np.where(must, 0, places)
        chosen = np.flatnonzero(must)
        num_free = per_device - len(chosen)
        if num_free > 0:
            free = rng.choice(len(supply), size=num_free, replace=False, p=may / may.sum())
            chosen = np.concatenate([chosen, free])
        holds[device, chosen] = True
        places[chosen] -= 1
    return holds


def _proportional_places(total: int, supply: IntArray, most: int) -> IntArray:
    """`total` places shared out in proportion to the supply by largest remainders, at most `most` to a class."""
    places = np.zeros_like(supply)
    while (missing := total - places.sum()) > 0:
        weight = np.where(places < most, supply, 0)
        ideal = missing * weight / weight.sum()
        whole = np.minimum(np.floor(ideal).astype(np.int64), most - places)
        if whole.sum() == 0:
            winners = np.argsort(-(ideal - np.floor(ideal)), kind="stable")[:missing]
            whole[winners] = (places[winners] < most) & (supply[winners] > 0)
        places += whole
    return places


def _even_shares(holds: BoolArray, sizes: IntArray, supply: IntArray) -> IntArray:
    """Counts `[device, class]` on the held classes with the given sizes, as near to even as the supply allows."""
    for slack in (0.1, 0.2, 0.3, 0.5, 1.0):
        counts = _shares_within(slack, holds, sizes, supply)
        if counts is not None:
            return counts
    rule = "too many for shards of this data: a class runs out; lower it"
    raise InputError("data.samples_per_device", Described(f"{sizes.sum()} in all"), rule)


def _shares_within(slack: float, holds: BoolArray, sizes: IntArray, supply: IntArray) -> IntArray | None:
    """The counts that deviate least in all from even shares, none by more than `slack` of its share, if any do.

    A linear programme in (surplus, shortfall) of every held class. Its matrix is totally unimodular, so the
    vertex that the simplex method ends in has whole numbers.
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


def _deal(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> Partition:
    """Hands every device its count of each class, at random within the class."""
    pieces = []
    for klass in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(labels == klass))
        pieces.append(np.split(members[: counts[:, klass].sum()], np.cumsum(counts[:, klass])[:-1]))
    indices = tuple(np.concatenate([piece[device] for piece in pieces]) for device in range(len(counts)))
    return Partition(indices, counts)


def _check_supply(labels: IntArray, sizes: IntArray) -> None:
    if sizes.sum() > len(labels):
        asked = Described(f"{sizes.sum()} in all")
        raise InputError("data.samples_per_device", asked, f"the training set has {len(labels)}")


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
