import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from airdistill.data import load_dataset
from airdistill.data.datasets import read_samples
from airdistill.errors import DataError

RNG = np.random.default_rng(4)
IMAGES = RNG.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(24) % 4
PARTS = {"data_batch_1": slice(0, 10), "data_batch_2": slice(10, 18), "test_batch": slice(18, 24)}


def pixels(part):
    """As the archives store them: channel by channel."""
    return IMAGES[part].transpose(0, 3, 1, 2).reshape(-1, 3072)


def binary(part, coarse=False):
    columns = [LABELS[part, None].astype(np.uint8), pixels(part)]
    return np.hstack([np.full((len(columns[0]), 1), 99, np.uint8), *columns] if coarse else columns).tobytes()


class PythonTwo(pickle._Pickler):
    """Writes bytes as Python 2 wrote its texts, which is how the official archives hold keys and pixels."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012 - as in the class that it is a copy of

    def save_bytes(self, content):
        code = pickle.SHORT_BINSTRING + bytes([len(content)]) if len(content) < 256 else None
        self.write((code or pickle.BINSTRING + len(content).to_bytes(4, "little")) + content)
        self.memoize(content)

    dispatch[bytes] = save_bytes


def pickled(part, key=b"labels", old=True):
    content = {b"batch_label": b"batch", key: LABELS[part].tolist(), b"data": pixels(part), b"filenames": [b"a.png"]}
    if not old:
        return pickle.dumps({name.decode(): value for name, value in content.items()}, protocol=4)
    buffer = io.BytesIO()
    PythonTwo(buffer, protocol=2).dump(content)
    return buffer.getvalue()


def archive(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-10-batches/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


FILES = {
    "binary": {f"{name}.bin": binary(part) for name, part in PARTS.items()},
    "python": {name: pickled(part) for name, part in PARTS.items()},
    "pickled again": {name: pickled(part, old=False) for name, part in PARTS.items()},
    "binary, 100 classes": {"train.bin": binary(slice(0, 18), True), "test.bin": binary(slice(18, 24), True)},
    "python, 100 classes": {
        "train": pickled(slice(0, 18), b"fine_labels"), "test": pickled(slice(18, 24), b"fine_labels"),
    },
}  # fmt: skip


@pytest.mark.parametrize("layout", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_official_layout_is_read(tmp_path, layout, packed):
    for name, content in FILES[layout].items():
        (tmp_path / name).write_bytes(content)
    source = archive(tmp_path / "cifar.tar.gz", FILES[layout]) if packed else tmp_path
    for _ in range(2):  # the second time from the cache
        dataset = load_dataset(str(source))
        assert np.array_equal(np.concatenate([dataset.x_train, dataset.x_test]), IMAGES)
        assert np.array_equal(np.concatenate([dataset.y_train, dataset.y_test]), LABELS)
    assert np.array_equal(read_samples(str(source)), IMAGES[:18])


class Call:
    """A pickle that calls a function when it is loaded."""

    def __init__(self, function, *arguments):
        self.how = (function, arguments)

    def __reduce__(self):
        return self.how


def hostile(marker):
    """Pickles that would run code, or take all memory, in place of a batch."""
    whole = {"labels": LABELS[:10].tolist(), "data": pixels(slice(0, 10))}
    endless = np.ndarray.__reduce__(np.zeros(1, np.uint8))
    yield "os.system", pickle.dumps(Call(os.system, f"touch {marker}"))
    yield "in a label", pickle.dumps({**whole, "labels": [Call(os.mkdir, str(marker))]})
    yield "eval", pickle.dumps(Call(eval, f"__import__('os').mkdir({str(marker)!r})"), protocol=0)
    yield "as a key", pickle.dumps({Call(os.mkdir, str(marker)): 1, **whole})
    yield "by attribute", b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__new__\x93."
    yield "other function of numpy", pickle.dumps(Call(np.load, "x.npy"))
    yield "an instance", f"(S'mkdir {marker}'\nios\nsystem\n.".encode()
    yield "an object", f"(cos\nsystem\nS'mkdir {marker}'\no.".encode()
    yield "a new object", b"\x80\x02cbuiltins\nobject\n)\x81."
    yield "persistent", b"Pnumpy\n."
    yield "an extension", b"\x80\x02\x82\x01."
    yield "memory of memos", b"\x80\x02}r\xff\xff\xff\xff."
    yield "objects in an array", pickle.dumps({**whole, "data": np.array([{}], dtype=object)})
    yield "a state of a class", b"cnumpy\ndtype\n}b."
    yield (
        "an array of objects by state",
        pickle.dumps(Call(endless[0], *endless[1]), protocol=2)[:-1]
        + b"(K\x01(L1000000000000L\ntcnumpy\ndtype\n(U\x02O8K\x00K\x01tR\x89]tb.",
    )
    yield (
        "too large an array",
        pickle.dumps(Call(endless[0], *endless[1]), protocol=2)[:-1]
        + b"(K\x01(L1000000000000L\ntcnumpy\ndtype\n(U\x02u1K\x00K\x01tR\x89U\x00tb.",
    )


@pytest.mark.parametrize("name", [name for name, _ in hostile("")])
def test_a_hostile_pickle_is_refused_in_one_line_and_runs_nothing(tmp_path, name):
    marker = tmp_path / "executed"
    folder = tmp_path / "batches"
    folder.mkdir()
    for file, content in FILES["python"].items():
        (folder / file).write_bytes(content)
    (folder / "data_batch_2").write_bytes(dict(hostile(marker))[name])
    with pytest.raises(DataError, match="data_batch_2: ") as caught:
        load_dataset(str(folder))
    assert "\n" not in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_damaged_archives_are_refused(tmp_path, layout):
    whole = archive(tmp_path / "whole.tar.gz", FILES[layout]).read_bytes()
    cut = {name: content[:-7] if "batch_2" in name else content for name, content in FILES[layout].items()}
    missing = {name: content for name, content in FILES[layout].items() if "batch_1" not in name}
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "flipped.tar.gz").write_bytes(whole[:500] + b"\xff" * 40 + whole[540:])
    (tmp_path / "no.tar.gz").write_bytes(b"hello")
    archive(tmp_path / "short.tar.gz", cut)
    archive(tmp_path / "missing.tar.gz", missing)
    archive(tmp_path / "other.tar.gz", {"readme.html": b""})
    rules = {
        "cut": "truncated", "flipped": "truncated", "no": "not a .tar", "short": "truncated",
        "missing": "one is missing", "other": "none of CIFAR",
    }  # fmt: skip
    for name, rule in rules.items():
        with pytest.raises(DataError, match=rule) as caught:
            load_dataset(str(tmp_path / f"{name}.tar.gz"))
        assert "\n" not in str(caught.value)


def test_a_batch_without_as_many_labels_as_images_is_refused(tmp_path):
    for name, content in FILES["python"].items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": pixels(slice(0, 3)), "labels": [0, 1]}, protocol=2))
    with pytest.raises(DataError, match="one whole number for each of 3 images"):
        load_dataset(str(tmp_path))
