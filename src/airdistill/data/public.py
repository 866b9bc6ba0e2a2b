"""The public set: unlabelled samples that server and devices share, disjoint from training and test samples.

No public sample may be an exact copy of a private (training) or test sample, wherever it comes from. Samples are
compared as a model in single precision sees them: 0.1 is a copy of 0.1 whether it is stored in 4 or in 8 bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import BoolArray, IntArray
from airdistill.data.datasets import Dataset, load_dataset, load_train_labels, read_samples
from airdistill.data.normalization import Normalization
from airdistill.errors import InputError
from airdistill.files import place_of
from airdistill.scenario.model import Scenario
from airdistill.scenario.sections import Public

Normalise = Callable[[NDArray[np.generic]], NDArray[np.generic]]
_DIGEST_BYTES = 16
_ROWS_AT_ONCE = 4096  # converted to single precision; bounds the memory
_PLACES_NAMED = 3


@dataclass(frozen=True)
class Comparison:
    """How many samples were compared and found to be no copies of each other; every number counts samples.

    `skipped` were not held out because the dataset has another copy of them. `private_in_test` test samples are copies
    of private ones: the dataset itself has them.
    """

    public: int
    private: int
    test: int
    skipped: int
    private_in_test: int

    def to_header(self) -> dict[str, int]:
        """What a ledger's header records of it."""
        return asdict(self)


@dataclass(frozen=True)
class PublicSet:
    """Public samples as stored, `[sample, ...]`.

    `hidden_labels` `[sample]` exist if the set was held out of labelled data. They are used only to report how many of
    the received labels are correct.
    """

    samples: NDArray[np.generic]
    comparison: Comparison
    hidden_labels: IntArray | None = None


def load_data(scenario: Scenario) -> tuple[Dataset, PublicSet | None]:
    """Load training and test samples, and the public set, which has no copy of any of them; normalised, if the scenario
    asks for it."""
    dataset, public = _as_stored(scenario)
    if public is None:
        return dataset, None
    normalise = normalisation(scenario, public.samples)
    return normalised_dataset(dataset, normalise), replace(public, samples=normalise(public.samples))


def normalisation(scenario: Scenario, public: NDArray[np.generic]) -> Normalise:
    """What a scenario does to all samples before they are used, given the public samples as stored."""
    return Normalization.of(public) if scenario.data.normalization == "public" else lambda samples: samples


def normalised_dataset(dataset: Dataset, normalise: Normalise) -> Dataset:
    return replace(dataset, x_train=normalise(dataset.x_train), x_test=normalise(dataset.x_test))


def public_as_stored(scenario: Scenario) -> NDArray[np.generic]:
    """The public samples as stored, `[sample, ...]`.

    With `data.class_counts` devices bring data of their own, and public samples from a file are compared with it there.
    """
    public = scenario.public
    assert public is not None  # the caller's scheme needs one
    if scenario.data.class_counts is None or public.source in ("train", "test"):
        found = _as_stored(scenario)[1]
        assert found is not None
        return found.samples
    samples = _samples_in_file(public)
    _check_enough(public.samples, len(samples), public.source)
    return samples[: public.samples]


def normalised(samples: NDArray[np.generic], scenario: Scenario) -> NDArray[np.generic]:
    """Other samples, normalised as those of `load_data`."""
    if scenario.data.normalization == "fixed":
        return samples
    _, public = _as_stored(scenario)
    assert public is not None  # validated with the scenario
    return Normalization.of(public.samples)(samples)


def _as_stored(scenario: Scenario) -> tuple[Dataset, PublicSet | None]:
    dataset, public = load_dataset(scenario.data.dataset), scenario.public
    if public is None:
        return dataset, None
    check_same_format("data.dataset", scenario.data.dataset, "test samples", dataset.x_test, dataset)
    if public.source in ("train", "test"):
        return _held_out(public, dataset)
    return dataset, _from_file(public, dataset)


def private_labels(scenario: Scenario) -> IntArray:
    """The labels of the training samples that are not public, `[sample]`."""
    if scenario.public is None or scenario.public.source != "train":
        return load_train_labels(scenario.data.dataset)
    # Which samples are public depends on copies, and so on the samples themselves.
    return load_data(scenario)[0].y_train


def num_test_samples(scenario: Scenario) -> int:
    """The number of test samples that `load_data` leaves for evaluation."""
    public, given = scenario.public, len(load_dataset(scenario.data.dataset).y_test)
    return given - (public.samples if public is not None and public.source == "test" else 0)


def _held_out(public: Public, dataset: Dataset) -> tuple[Dataset, PublicSet]:
    """Split the dataset into what stays and the public set."""
    train, test = _digests(dataset.x_train), _digests(dataset.x_test)
    occurrences = Counter([*train, *test])
    is_train = public.source == "train"
    digests = train if is_train else test
    single = np.array([occurrences[digest] == 1 for digest in digests])
    chosen, skipped = _choose(public, single)
    stays = np.ones(len(digests), dtype=np.bool_)
    stays[chosen] = False
    kept = [digest for digest, left in zip(digests, stays, strict=True) if left]
    comparison = _comparison(public.samples, kept if is_train else train, test if is_train else kept, skipped)
    if is_train:
        found = PublicSet(dataset.x_train[chosen], comparison, dataset.y_train[chosen])
        return replace(dataset, x_train=dataset.x_train[stays], y_train=dataset.y_train[stays]), found
    found = PublicSet(dataset.x_test[chosen], comparison, dataset.y_test[chosen])
    return replace(dataset, x_test=dataset.x_test[stays], y_test=dataset.y_test[stays]), found


def _choose(public: Public, single: BoolArray) -> tuple[IntArray, int]:
    """The positions to hold out, and how many were skipped: those of which the dataset has another copy.

    The public samples are the first that are `single` in the test set, or the last in the training set. In a dataset
    without copies these are simply the first or the last.
    """
    name = "the training set" if public.source == "train" else "the test set"
    requested, candidates = public.samples, np.flatnonzero(single)
    _check_enough(requested, len(single), name, least_left=1)
    if requested > len(candidates):
        rule = f"{name} has {len(candidates)} samples of which the dataset has no other copy; ask for at most as many"
        raise InputError("public.samples", requested, rule)
    if public.source == "train":
        chosen = candidates[-requested:]
        return chosen, int(np.count_nonzero(~single[chosen[0] :]))
    chosen = candidates[:requested]
    return chosen, int(np.count_nonzero(~single[: chosen[-1]]))


def _check_enough(requested: int, available: int, name: str, least_left: int = 0) -> None:
    if requested > available - least_left:
        rule = f"{name} has {available}" + (", and some must be left" if least_left else "")
        raise InputError("public.samples", requested, rule)


def _samples_in_file(public: Public) -> NDArray[np.generic]:
    if not place_of(public.source).exists():
        rule = (
            'must be "test", "train", an existing folder of IDX or CIFAR files or with x_public.npy, an .npz, .npy or '
            ".csv file, or an archive of CIFAR (.tar.gz)"
        )
        raise InputError("public.source", public.source, rule)
    return read_samples(public.source)


def _from_file(public: Public, dataset: Dataset) -> PublicSet:
    samples = _samples_in_file(public)
    check_same_format("public.source", public.source, "samples", samples, dataset)
    _check_enough(public.samples, len(samples), public.source)
    samples = samples[: public.samples]
    mine, train, test = _digests(samples), _digests(dataset.x_train), _digests(dataset.x_test)
    _check_no_copies(public.source, mine, train, test)
    return PublicSet(samples, _comparison(len(mine), train, test, skipped=0))


def check_same_format(field: str, value: str, name: str, samples: NDArray[np.generic], dataset: Dataset) -> None:
    """Raise unless samples have the shape and the kind of numbers of the devices': models scale bytes only."""
    both = (samples, dataset.x_train)
    shapes, kinds = [each.shape[1:] for each in both], [each.dtype == np.uint8 for each in both]
    if shapes[0] != shapes[1] or kinds[0] != kinds[1]:
        formats = [f"{each.dtype} of shape {each.shape[1:]}" for each in both]
        rule = f"its {name} are {formats[0]}, the devices' {formats[1]}; store both in one format"
        raise InputError(field, value, rule)


def check_not_private(field: str, source: str, samples: NDArray[np.generic], dataset: Dataset) -> None:
    """Raise if samples that are said to be public have a copy among the training samples."""
    mine = _digests(samples)
    private = _named(_copies(mine, _digests(dataset.x_train)), "training")
    if private:
        way_out = "a public sample must not be private: remove them, or use other samples"
        raise InputError(field, source, f"{_found(private, len(mine))}; {way_out}")


def _check_no_copies(source: str, mine: Sequence[bytes], train: Sequence[bytes], test: Sequence[bytes]) -> None:
    """Raise if a public sample is a copy of a private or test sample."""
    copies = _named(_copies(mine, test), "test") | _named(_copies(mine, train), "training")
    if copies:
        way_out = 'public samples must be neither private nor tested: remove them, or hold some out ("train", "test")'
        raise InputError("public.source", source, f"{_found(copies, len(mine))}; {way_out}")


def _copies(mine: Sequence[bytes], others: Sequence[bytes]) -> dict[int, int]:
    """The positions of my samples of which the others have a copy, with the position of one copy."""
    place_of = {digest: place for place, digest in enumerate(others)}
    return {place: place_of[digest] for place, digest in enumerate(mine) if digest in place_of}


def _named(copies: Mapping[int, int], part: str) -> dict[int, str]:
    return {place: f"{part} sample {original}" for place, original in copies.items()}


def _found(copies: Mapping[int, str], compared: int) -> str:
    """How many copies there are, and where the first are, in words."""
    first = ", ".join(f"{place} is {copies[place]}" for place in sorted(copies)[:_PLACES_NAMED])
    more = ", …" if len(copies) > _PLACES_NAMED else ""
    return f"{len(copies)} of its {compared} samples are copies (sample {first}{more})"


def _comparison(num_public: int, private: Sequence[bytes], test: Sequence[bytes], skipped: int) -> Comparison:
    return Comparison(num_public, len(private), len(test), skipped, len(_copies(test, private)))


def _digests(samples: NDArray[np.generic]) -> list[bytes]:
    """A digest of every sample, the same for copies."""
    rows = samples.reshape(len(samples), -1)
    found: list[bytes] = []
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        octets = _comparable(rows[first : first + _ROWS_AT_ONCE]).view(np.uint8)
        found += [hashlib.blake2b(row, digest_size=_DIGEST_BYTES).digest() for row in octets]
    return found


def _comparable(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """Rows whose bytes are the same if a model in single precision sees the same numbers."""
    if rows.dtype == np.uint8:
        return np.ascontiguousarray(rows)
    with np.errstate(over="ignore"):  # beyond single precision: infinite, as for a model
        single = np.ascontiguousarray(rows, dtype=np.float32)
    return single + np.float32(0)  # -0 becomes 0
