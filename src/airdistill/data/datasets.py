"""Datasets: the embedded MNIST, files in one of several formats, or a function of the user's own.

Decoded arrays are cached on disk under the digest of their file, in the folder `AIRDISTILL_CACHE` or in the user's
cache folder. A cache that cannot be read or written is not an error: the file is decoded again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import IntArray
from airdistill.data.cifar import TAR_SUFFIXES, read_folder, read_tar
from airdistill.data.formats import Arrays, decompress, parse_idx, read_csv, read_file, read_npy, read_npz
from airdistill.data.labels import Label, as_classes, as_labels, label_map
from airdistill.errors import DataError, InputError, described
from airdistill.files import place_of, write_whole
from airdistill.plugins import load_object

logger = logging.getLogger(__name__)

# MD5 digests of the official files, decompressed.
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_NAMES = ("x_train", "y_train", "x_test", "y_test")
_PUBLIC_NAME = "x_public"
_NAMES_SHOWN = 4
_LARGEST_SINGLE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Dataset:
    """Samples `[sample, ...]` as stored, and labels `[sample]` in 0..num_classes−1.

    `class_labels` has the stored label of every class; None if the stored labels are the classes.
    """

    name: str
    x_train: NDArray[np.generic]
    y_train: IntArray
    x_test: NDArray[np.generic]
    y_test: IntArray
    class_labels: tuple[Label, ...] | None = None

    @property
    def num_classes(self) -> int:
        return int(self.y_train.max()) + 1


SOURCES = (
    "an existing folder of IDX, .npy, CSV or CIFAR files, an .npz file, an archive of CIFAR (.tar.gz), or your own "
    "package.module:function"
)


def load_dataset(source: str, class_labels: Sequence[Label] | None = None) -> Dataset:
    """Load a dataset: "mnist", a folder or file in one of the known formats, or what a user's function returns.

    `class_labels` are the sorted labels of the classes; by default those of the training samples. A part of a dataset
    may lack some, and its labels must still mean the same classes.
    """
    return _checked(source, _arrays_of(source), class_labels)


def _arrays_of(source: str) -> Arrays:
    """The four arrays of a dataset as they are stored, by name."""
    if source == "mnist":
        return dict(zip(_NAMES, map(_embedded, _MNIST_MD5), strict=True))
    path = place_of(source)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file() and path.suffix == ".npz":
        return _from_npz(path)
    if path.is_file() and path.name.endswith(TAR_SUFFIXES):
        return _from_tar(path)
    if ":" in source and not path.exists():
        return _from_function(source)
    problem = "no such file or folder; " if not path.exists() else ""
    raise InputError("data.dataset", source, f'{problem}must be "mnist", {SOURCES}')


@dataclass(frozen=True)
class DatasetSummary:
    """What a plan needs of a dataset: the training labels `[sample]`, and of what shape, type and size samples are."""

    y_train: IntArray
    class_labels: tuple[Label, ...] | None
    sample_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    largest: float  # absolute value in a sample


def dataset_summary(source: str) -> DatasetSummary:
    """Summarise a dataset. Samples are read once until their files change; those of the embedded MNIST not at all."""
    if source == "mnist":
        labels = _embedded("train-labels-idx1-ubyte").astype(np.int64)
        return DatasetSummary(labels, None, (28, 28), np.dtype(np.uint8), 255.0)
    return _summarised(source, _stamp(source))


def load_train_labels(source: str) -> IntArray:
    """Load the training labels `[sample]`."""
    return dataset_summary(source).y_train


@lru_cache(maxsize=4)
def _summarised(source: str, _version: Any) -> DatasetSummary:
    dataset = load_dataset(source)
    dataset.y_train.setflags(write=False)  # every plan of this process shares them
    shape, dtype = dataset.x_train.shape[1:], dataset.x_train.dtype
    return DatasetSummary(dataset.y_train, dataset.class_labels, shape, dtype, largest_value(dataset.x_train))


def _stamp(source: str) -> Any:
    """What changes when a dataset does: names, sizes and times of its files, or the function that returns it."""
    path = place_of(source)
    if ":" in source and not path.exists():
        return load_object(source, "data.dataset")
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists())


def read_samples(source: str) -> NDArray[np.generic]:
    """Load public samples without labels: `x_public` of an .npz file or a folder, the training images of a folder or
    archive of images, or the samples of a .npy or .csv file."""
    path = place_of(source)
    if path.is_dir():
        samples = _public_of_folder(path)
    elif path.name.endswith(TAR_SUFFIXES):
        samples = _from_tar(path)["x_train"]
    elif path.suffix in (".npy", ".csv"):
        samples = read_npy(path) if path.suffix == ".npy" else read_csv(path)[0]
    else:
        samples = _public_of_npz(path)
    if samples.ndim < 2 or len(samples) == 0:
        raise DataError(f"{path}: samples of shape {samples.shape}: must be [sample, ...]")
    return _as_samples(samples, source)


def _public_of_folder(folder: Path) -> NDArray[np.generic]:
    if (folder / f"{_PUBLIC_NAME}.npy").is_file():
        return read_npy(folder / f"{_PUBLIC_NAME}.npy")
    images = read_folder(folder)
    return _idx_of_folder(folder, "train-images-idx3-ubyte") if images is None else images["x_train"]


def _public_of_npz(path: Path) -> NDArray[np.generic]:
    def choose(names: list[str]) -> list[str]:
        if _PUBLIC_NAME not in names:
            # No other array stands in: x_train may well be private.
            found = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
            rule = f"must have an array {_PUBLIC_NAME}: numpy.savez(file, {_PUBLIC_NAME}=samples); it has {found}"
            raise InputError("public.source", str(path), rule)
        return [_PUBLIC_NAME]

    (samples,) = read_npz(path, choose).values()
    return samples


def _embedded(name: str) -> NDArray[np.generic]:
    path = Path(str(resources.files("airdistill") / "data" / "mnist" / f"{name}.xz"))
    raw = read_file(path)

    def decode() -> NDArray[np.generic]:
        content = decompress(raw, path)
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != _MNIST_MD5[name]:
            raise DataError(f"{path}: is not the official MNIST file; install the package again")
        return parse_idx(content, str(path))

    # Only images are cached: labels take a millisecond to decode.
    return decode() if "labels" in name else cached_decode(raw, decode)


def _from_folder(folder: Path) -> Arrays:
    """The arrays of a folder; its files' names decide the format."""
    present = {path.name for path in folder.iterdir()}
    if present & {f"{name}.npy" for name in _NAMES}:
        missing = [f"{name}.npy" for name in _NAMES if f"{name}.npy" not in present]
        if missing:
            raise DataError(f"{folder}: has no {', '.join(missing)}")
        return {name: read_npy(folder / f"{name}.npy") for name in _NAMES}
    if present & {"train.csv", "test.csv"}:
        return _from_tables(folder)
    images = read_folder(folder)
    if images is not None:
        return images
    return {name: _idx_of_folder(folder, file) for name, file in zip(_NAMES, _MNIST_MD5, strict=True)}


def _from_tables(folder: Path) -> Arrays:
    """The arrays of `train.csv` and `test.csv`."""
    arrays: Arrays = {}
    for part in ("train", "test"):
        if not (folder / f"{part}.csv").is_file():
            raise DataError(f"{folder}: has no {part}.csv; a folder of tables needs train.csv and test.csv")
        samples, labels = read_csv(folder / f"{part}.csv")
        if labels is None:
            raise DataError(f"{folder / f'{part}.csv'}: has no column label; name the column of the classes so")
        arrays |= {f"x_{part}": samples, f"y_{part}": np.array(labels)}
    texts = [arrays["y_train"], arrays["y_test"]]
    if all(re.fullmatch(r"[+-]?\d{1,9}", text) for labels in texts for text in labels.tolist()):
        arrays |= {"y_train": texts[0].astype(np.int64), "y_test": texts[1].astype(np.int64)}
    return arrays


def _idx_of_folder(folder: Path, name: str) -> NDArray[np.generic]:
    # Some distributions write "train-images.idx3-ubyte".
    stems = [name, name.replace("-idx", ".idx")]
    for path in (folder / f"{stem}{suffix}" for stem in stems for suffix in ("", ".gz", ".xz")):
        if path.is_file():
            return _read_idx(path)
    others = "; nor has it x_train.npy, train.csv, or CIFAR's batches with a test_batch"
    raise DataError(f"{folder}: has no {name} (plain, .gz or .xz){others if name.startswith('train-images') else ''}")


def _read_idx(path: Path) -> NDArray[np.generic]:
    raw = read_file(path)
    if path.suffix in (".gz", ".xz"):
        return cached_decode(raw, lambda: parse_idx(decompress(raw, path), str(path)))
    return parse_idx(raw, str(path))


def _from_npz(path: Path) -> Arrays:
    def choose(names: list[str]) -> list[str]:
        missing = [name for name in _NAMES if name not in names]
        if missing:
            found = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
            rule = f"must have the arrays {', '.join(_NAMES)}; it has {found}"
            raise DataError(f"{path}: has no {', '.join(missing)}: {rule}")
        return list(_NAMES)

    return read_npz(path, choose)


def _from_tar(path: Path) -> Arrays:
    raw = read_file(path)
    decoded = cache(lambda: read_tar(raw, path))
    return {name: cached_decode(raw, lambda name=name: decoded()[name], f"-{name}") for name in _NAMES}  # type: ignore[misc]


def _from_function(reference: str) -> Arrays:
    """The arrays that a user's `package.module:function` returns."""
    return _called(load_object(reference, "data.dataset"), reference)


@lru_cache(maxsize=4)
def _called(function: Callable[[], Any], reference: str) -> Arrays:
    """The result of a user's function, called once in a process: a plan and a run must see the same samples."""
    try:
        given = function()
    except Exception as error:  # a user's function may raise anything
        raise InputError("data.dataset", reference, f"failed: {described(error)}") from error
    if isinstance(given, Dataset):
        given = vars(given)
    missing = [name for name in _NAMES if name not in given] if isinstance(given, Mapping) else list(_NAMES)
    if missing:
        got = "" if isinstance(given, Mapping) else f", not a {type(given).__name__}"
        rule = f"must return a dictionary of arrays {', '.join(_NAMES)}{got or f'; it has no {missing[0]}'}"
        raise InputError("data.dataset", reference, rule)
    return {name: np.asarray(given[name]) for name in _NAMES}


def _checked(name: str, arrays: Arrays, class_labels: Sequence[Label] | None) -> Dataset:
    """The dataset, after a check that samples and labels are consistent."""
    x_train, x_test = _as_samples(arrays["x_train"], name), _as_samples(arrays["x_test"], name)
    for part, samples, given in [("training", x_train, arrays["y_train"]), ("test", x_test, arrays["y_test"])]:
        if len(given) == 0 or len(samples) == 0:
            raise DataError(f"{name}: has no {part} samples; there must be at least one")
        if samples.ndim < 2:
            raise DataError(f"{name}: {part} samples of shape {samples.shape}: must be [sample, feature] or images")
        if len(samples) != len(given):
            rule = "there must be one label a sample"
            raise DataError(f"{name}: {len(given)} {part} labels for {len(samples)} samples; {rule}")
    y_train, y_test = as_labels(arrays["y_train"], name), as_labels(arrays["y_test"], name)
    if x_train.shape[1:] != x_test.shape[1:]:
        shapes = f"training samples have shape {x_train.shape[1:]} and test samples {x_test.shape[1:]}"
        raise DataError(f"{name}: {shapes}; both must be the same")
    mapped = label_map(y_train, name) if class_labels is None else tuple(class_labels)
    known = range(len(np.unique(y_train))) if mapped is None else mapped
    train = as_classes(y_train, known, f"{name}: label", f"is none of the labels {', '.join(map(str, known))}")
    untrained = "has no training sample; add some, or leave the class out of the test set"
    test = as_classes(y_test, known, f"{name}: test label", untrained)
    if test.max() > train.max():
        raise DataError(f"{name}: test label {y_test[test.argmax()]} {untrained}")
    if class_labels is None and train.max() == 0:
        raise DataError(f"{name}: all training labels are {y_train[0]}: there must be at least two classes")
    return Dataset(name, x_train, train, x_test, test, mapped)


def _as_samples(array: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    """Finite numbers in the machine's byte order."""
    if array.dtype.kind not in "uifb":
        raise DataError(f"{name}: samples must be numbers, not {array.dtype}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            bad = int(np.count_nonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1)))
            rule = "remove these samples, or fill in the missing numbers"
            raise DataError(f"{name}: {bad} of {len(array)} samples have numbers that are not finite; {rule}")
        if largest_value(array) > _LARGEST_SINGLE:
            rule = f"models compute in single precision, up to {_LARGEST_SINGLE:.1e}: scale the samples to about 1"
            raise DataError(f"{name}: samples reach {largest_value(array):.1e}; {rule}")
        return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32, copy=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def largest_value(samples: NDArray[np.generic]) -> float:
    """The largest absolute value in samples; 0 without any."""
    return max(float(samples.max()), -float(samples.min())) if samples.size else 0.0


def cache_folder() -> Path:
    """The folder of all cached files."""
    chosen = os.environ.get("AIRDISTILL_CACHE")
    if chosen and not caching_is_off():
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "airdistill"


def caching_is_off() -> bool:
    """Whether data and what is fitted to them are not to be stored. Compiled kernels, which show none, always are."""
    return os.environ.get("AIRDISTILL_CACHE") == "off"


def cached_decode(source: bytes, decode: Callable[[], NDArray[np.generic]], part: str = "") -> NDArray[np.generic]:
    """The result of `decode` for a file's content `source`, or for a named part of it, from the cache if possible."""
    if caching_is_off():
        return decode()
    entry = cache_folder() / f"{hashlib.sha256(source).hexdigest()}{part}.npy"
    cached = _read(entry)
    if cached is not None:
        return cached
    array = decode()
    _write(entry, array)
    return array


def _read(entry: Path) -> NDArray[np.generic] | None:
    """The cached array, if its content matches the digest that is stored next to it."""
    try:
        content = entry.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry.with_suffix(".sha256").read_text():
            logger.warning("%s: damaged, decoded again", entry)
            return None
    except OSError:
        return None
    array: NDArray[np.generic] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _write(entry: Path, array: NDArray[np.generic]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_whole(entry.with_suffix(".sha256"), digest.encode())
        write_whole(entry, buffer.getbuffer())
    except OSError as error:
        logger.warning("%s: not cached: %s", entry, error)
