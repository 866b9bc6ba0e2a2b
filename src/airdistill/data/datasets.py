"""Where samples come from: the embedded MNIST, a folder of IDX files, or an `.npz` file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import IntArray
from airdistill.data.cache import decoded_once
from airdistill.data.idx import decompress, parse_idx, read_file
from airdistill.data.npz import read_npz
from airdistill.errors import DataError, InputError

# Of the decompressed official files.
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_LARGEST_LABEL = 9_999
_NPZ_NAMES = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Dataset:
    """Samples `[sample, ...]` as they were stored, and labels `[sample]` in 0..num_classes−1."""

    name: str
    x_train: NDArray[np.generic]
    y_train: IntArray
    x_test: NDArray[np.generic]
    y_test: IntArray

    @property
    def num_classes(self) -> int:
        return int(self.y_train.max()) + 1


def load_dataset(source: str) -> Dataset:
    """The whole dataset: "mnist", a folder of IDX files with MNIST's names, or an .npz file."""
    if source == "mnist":
        arrays = {name: _embedded(name) for name in _MNIST_MD5}
        return _checked("mnist", *arrays.values())
    path = Path(source)
    if path.is_dir():
        return _checked(source, *(_from_folder(path, name) for name in _MNIST_MD5))
    if path.is_file() and path.suffix == ".npz":
        return _checked(source, *_from_npz(path))
    raise InputError("data.dataset", source, 'must be "mnist", an existing folder of IDX files or an .npz file')


def load_train_labels(source: str) -> IntArray:
    """The training labels `[sample]`. Of the embedded MNIST nothing else is decoded; of other data all is checked."""
    if source == "mnist":
        return _as_labels(_embedded("train-labels-idx1-ubyte"), "mnist")
    return load_dataset(source).y_train


def read_samples(source: str) -> NDArray[np.generic]:
    """Samples without labels: `x_public` (or `x_train`) of an .npz file, or the training images of a folder."""
    path = Path(source)
    if path.is_dir():
        return _as_samples(_from_folder(path, "train-images-idx3-ubyte"), source)

    def choose(names: list[str]) -> list[str]:
        found = [name for name in names if name in ("x_public", "x_train")]
        if not found:
            raise DataError(f"{path}: has neither x_public nor x_train")
        return [min(found)]  # x_public first

    (samples,) = read_npz(path, choose).values()
    if samples.ndim < 2 or len(samples) == 0:
        raise DataError(f"{path}: samples of shape {samples.shape}: must be [sample, ...]")
    return _as_samples(samples, source)


def _embedded(name: str) -> NDArray[np.generic]:
    path = Path(str(resources.files("airdistill") / "data" / "mnist" / f"{name}.xz"))

    raw = read_file(path)

    def decode() -> NDArray[np.generic]:
        content = decompress(raw, path)
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != _MNIST_MD5[name]:
            raise DataError(f"{path}: is not the official MNIST file; install the package again")
        return parse_idx(content, str(path))

    # Labels take a millisecond to decode: only images are worth a place in the cache.
    return decode() if "labels" in name else decoded_once(raw, decode)


def _from_folder(folder: Path, name: str) -> NDArray[np.generic]:
    # Some distributions write "train-images.idx3-ubyte".
    stems = [name, name.replace("-idx", ".idx")]
    for path in (folder / f"{stem}{suffix}" for stem in stems for suffix in ("", ".gz", ".xz")):
        if path.is_file():
            return _read_idx(path)
    raise DataError(f"{folder}: has no {name} (plain, .gz or .xz)")


def _read_idx(path: Path) -> NDArray[np.generic]:
    raw = read_file(path)
    if path.suffix in (".gz", ".xz"):
        return decoded_once(raw, lambda: parse_idx(decompress(raw, path), str(path)))
    return parse_idx(raw, str(path))


def _from_npz(path: Path) -> list[NDArray[np.generic]]:
    def choose(names: list[str]) -> list[str]:
        missing = [name for name in _NPZ_NAMES if name not in names]
        if missing:
            raise DataError(f"{path}: has no {', '.join(missing)}")
        return list(_NPZ_NAMES)

    return list(read_npz(path, choose).values())


def _checked(
    name: str,
    x_train: NDArray[np.generic],
    y_train: NDArray[np.generic],
    x_test: NDArray[np.generic],
    y_test: NDArray[np.generic],
) -> Dataset:
    """A dataset whose labels fit its samples and each other."""
    x_train, x_test = _as_samples(x_train, name), _as_samples(x_test, name)
    dataset = Dataset(name, x_train, _as_labels(y_train, name), x_test, _as_labels(y_test, name))
    for part, samples, labels in [("training", x_train, dataset.y_train), ("test", x_test, dataset.y_test)]:
        if samples.ndim < 2 or len(samples) != len(labels):
            rule = f"{len(labels)} {part} labels for samples of shape {samples.shape}"
            raise DataError(f"{name}: {rule}")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(f"{name}: training samples {x_train.shape[1:]} and test samples {x_test.shape[1:]} differ")
    if dataset.y_test.max() >= dataset.num_classes:
        raise DataError(f"{name}: test label {dataset.y_test.max()} has no training sample")
    return dataset


def _as_samples(array: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    """Numbers in an order of bytes that this machine has, none of them infinite or missing."""
    if array.dtype.kind not in "uifb":
        raise DataError(f"{name}: samples must be numbers, not {array.dtype}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{name}: has samples that are no finite numbers")
        return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32, copy=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _as_labels(array: NDArray[np.generic], name: str) -> IntArray:
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(f"{name}: labels must be a list of whole numbers, not {array.dtype} of shape {array.shape}")
    labels = array.astype(np.int64)
    if labels.min() < 0:
        raise DataError(f"{name}: label {labels.min()} is negative")
    if labels.max() > _LARGEST_LABEL:
        raise DataError(f"{name}: label {labels.max()}: there may be {_LARGEST_LABEL + 1} classes at most, from 0 on")
    return labels
