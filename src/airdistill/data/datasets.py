"""Datasets: the embedded MNIST, files in one of several formats, a function of the user's own, or synthetic samples.

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
from numpy.typing import DTypeLike, NDArray

from airdistill.arrays import FloatArray, IntArray
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
# Synthetic samples.
_NOISE_FRACTION = 0.5  # of a sample's variance; devices then need a few rounds to learn, as on MNIST
_BLUR = 1 / 12  # relative to an axis; for 28 pixels about the width of a stroke
_MIN_SMOOTH_AXIS = 8  # shorter axes are colours, or features without an order
_BRIGHT_ABOVE, _EDGE = 1.1, 0.2  # standard deviations


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
    raise InputError("data.dataset", source, f'must be "mnist", {SOURCES}')


def load_train_labels(source: str) -> IntArray:
    """Load the training labels `[sample]`; only of the embedded MNIST without loading and checking the samples."""
    if source == "mnist":
        return _embedded("train-labels-idx1-ubyte").astype(np.int64)
    return load_dataset(source).y_train


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
        samples, labels = read_csv(folder / f"{part}.csv")
        if labels is None:
            raise DataError(f"{folder / f'{part}.csv'}: must have a column with the name label")
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
            raise DataError(f"{path}: has no {', '.join(missing)}")
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
    y_train, y_test = as_labels(arrays["y_train"], name), as_labels(arrays["y_test"], name)
    for part, samples, labels in [("training", x_train, y_train), ("test", x_test, y_test)]:
        if samples.ndim < 2 or len(samples) != len(labels):
            raise DataError(f"{name}: {len(labels)} {part} labels for samples of shape {samples.shape}")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(f"{name}: training samples {x_train.shape[1:]} and test samples {x_test.shape[1:]} differ")
    mapped = label_map(y_train, name) if class_labels is None else tuple(class_labels)
    known = range(len(np.unique(y_train))) if mapped is None else mapped
    train = as_classes(y_train, known, f"{name}: label", f"is none of the labels {', '.join(map(str, known))}")
    test = as_classes(y_test, known, f"{name}: test label", "has no training sample")
    if test.max() > train.max():
        raise DataError(f"{name}: test label {y_test[test.argmax()]} has no training sample")
    return Dataset(name, x_train, train, x_test, test, mapped)


def _as_samples(array: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    """Finite numbers in the machine's byte order."""
    if array.dtype.kind not in "uifb":
        raise DataError(f"{name}: samples must be numbers, not {array.dtype}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{name}: has samples that are not finite")
        return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32, copy=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


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


def synthetic_samples(
    labels: IntArray, patterns: FloatArray, dtype: DTypeLike, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Draw a sample for every label, `[sample, ...]`, from patterns `[class, ...]` of `class_patterns`.

    Synthetic samples replace data that must not be used, for instance to measure constants without a privacy cost: only
    shape, type and labels are taken from the data. Every sample is a mixture of its class's smooth random pattern and
    smooth noise. Bytes have the brightness of MNIST, and so `learning` scales them as it does real images. Floats have
    mean 0 and variance 1.
    """
    noise = _smooth(len(labels), patterns.shape[1:], rng)
    field = np.sqrt(1 - _NOISE_FRACTION) * patterns[labels] + np.sqrt(_NOISE_FRACTION) * noise
    if np.dtype(dtype) != np.uint8:
        return np.asarray(field, dtype=np.float32)
    brightness = 1 / (1 + np.exp((_BRIGHT_ABOVE - field) / _EDGE))
    return np.asarray(np.rint(255 * brightness), dtype=np.uint8)


def class_patterns(num_classes: int, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """A smooth random pattern for each class, `[class, ...]`."""
    return _smooth(num_classes, shape, rng)


def _smooth(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Gaussian random fields `[field, ...]` of mean 0 and variance 1, smooth along long axes."""
    from scipy.ndimage import gaussian_filter

    noise = rng.standard_normal((count, *shape))
    # A single long axis is a list of features without spatial order.
    images = sum(length >= _MIN_SMOOTH_AXIS for length in shape) > 1
    blur = [0.0, *(_BLUR * length if images and length >= _MIN_SMOOTH_AXIS else 0.0 for length in shape)]
    smoothed = gaussian_filter(noise, sigma=blur, mode="wrap")
    return np.asarray(smoothed / smoothed.std())
