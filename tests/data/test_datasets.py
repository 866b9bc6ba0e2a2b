import gzip
import hashlib
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from airdistill.data import load_dataset, load_train_labels
from airdistill.data.datasets import cache_folder
from airdistill.errors import AirDistillError, DataError, InputError

NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 0x08, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def arrays():
    return {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (30, 4, 5)),
        "train-labels-idx1-ubyte": np.arange(30) % 3,
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (6, 4, 5)),
        "t10k-labels-idx1-ubyte": np.arange(6) % 3,
    }


@pytest.fixture
def folder(tmp_path, arrays):
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(idx(array))
    return tmp_path


def test_the_embedded_mnist_is_the_official_one():
    dataset = load_dataset("mnist")
    assert dataset.x_train.shape == (60000, 28, 28)
    assert dataset.x_test.shape == (10000, 28, 28)
    # Published facts of MNIST: samples per digit, and mean and standard deviation of the pixels.
    digits = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(dataset.y_train).tolist() == digits
    assert dataset.x_train.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert dataset.x_train.std() / 255 == pytest.approx(0.3081, abs=5e-5)
    raw = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (10000, 28, 28)) + dataset.x_test.tobytes()
    assert hashlib.md5(raw).hexdigest() == "2646ac647ad5339dbf082846283269ea"


def test_mnist_is_cached_and_a_damaged_cache_is_replaced(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("AIRDISTILL_CACHE", str(tmp_path / "cache"))
    first = load_dataset("mnist")
    entries = sorted(cache_folder().glob("*.npy"))
    assert len(entries) == 2
    stamp = entries[0].stat().st_mtime_ns
    load_dataset("mnist")
    assert entries[0].stat().st_mtime_ns == stamp
    content = bytearray(entries[0].read_bytes())
    content[-1] ^= 1
    entries[0].write_bytes(content)
    again = load_dataset("mnist")
    assert "damaged" in caplog.text
    assert np.array_equal(first.x_train, again.x_train)
    assert np.array_equal(first.x_test, again.x_test)


def test_a_cache_that_cannot_be_written_is_not_an_error(monkeypatch, tmp_path, folder, arrays):
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("AIRDISTILL_CACHE", str(blocked / "cache"))
    for name, array in arrays.items():
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    assert np.array_equal(load_dataset(str(folder)).x_train, arrays["train-images-idx3-ubyte"])


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", lambda raw: raw), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_a_folder_of_idx_files_is_read(tmp_path, arrays, suffix, compress):
    for name, array in arrays.items():
        (tmp_path / f"{name}{suffix}").write_bytes(compress(idx(array)))
    dataset = load_dataset(str(tmp_path))
    assert np.array_equal(dataset.x_train, arrays["train-images-idx3-ubyte"])
    assert np.array_equal(dataset.y_test, arrays["t10k-labels-idx1-ubyte"])
    assert dataset.num_classes == 3
    assert np.array_equal(load_train_labels(str(tmp_path)), arrays["train-labels-idx1-ubyte"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("suffix", "compress"), [("", lambda raw: raw), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_a_truncated_file_is_rejected_even_if_only_labels_are_needed(folder, arrays, name, suffix, compress):
    (folder / name).unlink()
    whole = compress(idx(arrays[name]))
    (folder / f"{name}{suffix}").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DataError, match="truncated") as caught:
        load_train_labels(str(folder))
    assert name in str(caught.value)


def test_truncation_of_a_cached_image_file_is_detected(folder, arrays):
    name = "train-images-idx3-ubyte"
    (folder / name).unlink()
    packed = folder / f"{name}.gz"
    packed.write_bytes(gzip.compress(idx(arrays[name])))
    load_dataset(str(folder))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match="truncated"):
        load_dataset(str(folder))


def test_an_npz_is_read(tmp_path, arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **dict(zip(["x_train", "y_train", "x_test", "y_test"], arrays.values(), strict=True)))
    assert load_dataset(str(path)).x_test.shape == (6, 4, 5)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"y_train": np.zeros(4, int)}, "4 training labels"),
        ({"y_train": np.arange(30.0)}, r"labels are float64: .* whole numbers with labels.astype\(int\)"),
        ({"y_train": np.arange(30) % 2 == 0}, r"labels are bool: .*labels.astype\(int\)"),
        ({"y_train": np.eye(30)}, r"one label a sample; of one-hot rows take labels.argmax\(axis=1\)"),
        ({"y_train": np.arange(30)[:, None]}, r"one label a sample; use labels.ravel\(\)"),
        ({"x_test": np.zeros((0, 4, 5)), "y_test": np.zeros(0, int)}, "has no test samples"),
        ({"y_train": np.full(30, 2), "y_test": np.full(6, 2)}, "all training labels are 2: .* at least two classes"),
        ({"x_train": np.full((30, 4, 5), 1e39)}, r"samples reach 1.0e\+39; models compute in single precision"),
        ({"x_train": np.zeros(30), "x_test": np.zeros(6)}, r"shape \(30,\): must be \[sample, feature\]"),
        ({"x_train": np.full((30, 4, 5), {}, dtype=object)}, "array of Python objects, which are never loaded"),
        ({"y_train": np.arange(30) - 1}, "negative"),
        ({"y_test": np.full(6, 3)}, "label 3 has no training sample"),
        ({"x_test": np.zeros((6, 4, 4))}, "both must be the same"),
        ({"x_test": None}, "has no x_test"),
        ({"x_test": np.full((6, 4, 5), np.nan)}, "not finite"),
        ({"x_train": np.full((30, 4, 5), "a")}, "must be numbers"),
        ({"x_train": np.zeros((30, 4, 5), "datetime64[s]")}, "must be numbers"),
    ],
)
def test_inconsistent_data_are_rejected(tmp_path, arrays, change, rule):
    given = dict(zip(["x_train", "y_train", "x_test", "y_test"], arrays.values(), strict=True)) | change
    np.savez(tmp_path / "data.npz", **{name: array for name, array in given.items() if array is not None})
    with pytest.raises(DataError, match=rule):
        load_dataset(str(tmp_path / "data.npz"))


def test_a_truncated_npz_is_rejected(tmp_path, arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **dict(zip(["x_train", "y_train", "x_test", "y_test"], arrays.values(), strict=True)))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="truncated"):
        load_dataset(str(path))


def damaged_archives(folder):
    """Damaged archives, for which NumPy, zipfile and zlib raise different exceptions."""
    arrays = {name: np.zeros((50, 8), np.uint8) for name in ["x_train", "y_train", "x_test", "y_test"]}
    np.savez_compressed(folder / "flipped.npz", **arrays)
    content = bytearray((folder / "flipped.npz").read_bytes())
    content[70:90] = b"\xff" * 20
    (folder / "flipped.npz").write_bytes(content)
    np.save(folder / "single.npy", np.zeros((3, 3)))
    (folder / "single.npy").rename(folder / "single.npz")
    with zipfile.ZipFile(folder / "texts.npz", "w") as archive:
        for name in arrays:
            archive.writestr(name, "hello")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000,), }"
    with zipfile.ZipFile(folder / "endless.npz", "w") as archive:
        for name in arrays:
            archive.writestr(f"{name}.npy", header.ljust(127) + b"\n")
    (folder / "empty.npz").write_bytes(b"")
    np.savez(folder / "objects.npz", **{name: np.array([{}], dtype=object) for name in arrays})
    return sorted(folder.glob("*.npz"))


def test_damaged_archives_are_rejected_with_a_single_line(tmp_path):
    paths = damaged_archives(tmp_path)
    assert len(paths) == 6
    for path in paths:
        with pytest.raises(DataError) as caught:
            load_dataset(str(path))
        assert "\n" not in str(caught.value)


def test_huge_labels_and_invalid_headers_are_rejected(tmp_path, arrays):
    given = dict(zip(["x_train", "y_train", "x_test", "y_test"], arrays.values(), strict=True))
    given["y_train"] = given["y_train"].astype(np.int64)
    given["y_train"][0] = 2**62
    np.savez(tmp_path / "labels.npz", **given)
    with pytest.raises(DataError, match="must be at most 9999"):
        load_dataset(str(tmp_path / "labels.npz"))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\xff" + b"\0" * 2000)
    with pytest.raises(DataError, match="255 axes"):
        load_dataset(str(tmp_path))


def test_missing_data_are_rejected(tmp_path):
    with pytest.raises(InputError, match=r"data\.dataset"):
        load_dataset(str(tmp_path / "nowhere"))
    with pytest.raises(AirDistillError, match="has no train-images"):
        load_dataset(str(tmp_path))


def test_the_embedded_files_state_their_licence():
    import airdistill

    notice = Path(airdistill.__file__).parent / "data" / "mnist" / "NOTICE.md"
    assert "Attribution-ShareAlike 3.0" in notice.read_text()
