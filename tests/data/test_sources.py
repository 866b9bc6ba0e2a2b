"""Datasets as .npy files, as tables, and as functions."""

import sys

import numpy as np
import pytest

from airdistill.data import load_dataset
from airdistill.data.datasets import read_samples
from airdistill.errors import AirDistillError, DataError, InputError

RNG = np.random.default_rng(5)
ARRAYS = {
    "x_train": RNG.standard_normal((12, 3)), "y_train": np.arange(12) % 3,
    "x_test": RNG.standard_normal((6, 3)), "y_test": np.arange(6) % 3,
}  # fmt: skip


def same(dataset):
    return all(np.array_equal(getattr(dataset, name), array) for name, array in ARRAYS.items())


def test_a_folder_of_npy_files_is_read(tmp_path):
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert same(load_dataset(str(tmp_path)))
    np.save(tmp_path / "x_public.npy", ARRAYS["x_test"] + 1)
    assert np.array_equal(read_samples(str(tmp_path)), ARRAYS["x_test"] + 1)
    assert np.array_equal(read_samples(str(tmp_path / "x_public.npy")), ARRAYS["x_test"] + 1)


def test_damaged_and_missing_npy_files_are_refused(tmp_path):
    np.save(tmp_path / "x_train.npy", ARRAYS["x_train"])
    with pytest.raises(DataError, match=r"has no y_train\.npy, x_test\.npy, y_test\.npy"):
        load_dataset(str(tmp_path))
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    whole = (tmp_path / "x_test.npy").read_bytes()
    for content in (whole[:-9], whole[:20], b"", b"hello"):
        (tmp_path / "x_test.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"x_test\.npy: truncated") as caught:
            load_dataset(str(tmp_path))
        assert "\n" not in str(caught.value)
    np.save(tmp_path / "x_test.npy", np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"x_test\.npy: has an array of Python objects, which are never loaded"):
        load_dataset(str(tmp_path))


def table(path, samples, labels, names="height,label,width,depth"):
    rows = [f"{a!r},{label},{b!r},{c!r}" for (a, b, c), label in zip(samples.tolist(), labels, strict=True)]
    path.write_text("\n".join([names, *rows]) + "\n\n")


def test_tables_are_read_whatever_the_place_of_their_label_column(tmp_path):
    for part in ("train", "test"):
        table(tmp_path / f"{part}.csv", ARRAYS[f"x_{part}"], ARRAYS[f"y_{part}"])
    assert same(load_dataset(str(tmp_path)))
    table(tmp_path / "public.csv", ARRAYS["x_test"], "abcdef")
    assert np.array_equal(read_samples(str(tmp_path / "public.csv")), ARRAYS["x_test"])


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("", "must have a first line"),
        ("a,label\n", "must have a first line"),
        ("1.5,0\n2.5,1\n", "must name the columns"),
        ("a,b\n1,2\n", "has no column label"),
        ("label\n1\n", "with features"),
        ("a,label,label\n1,0,0\n", "at most one label"),
        ("a,label\n1,0\n2\n", "line 3: has 1 entries; the first line names 2"),
        ("a,label\n1,0\n\nx,1\n", "line 4: column a must be a number, not 'x'"),
        ("a,label\nnan,0\n", "1 of 1 samples have numbers that are not finite; remove these"),
        ("a;label\n1;0\n", "has no comma; columns must be separated by commas"),
        ('a,label\n"1,0\n', "line 2: has 1 entries"),
        ("a,label\n\xff\n".encode("latin1"), "not a CSV file in UTF-8"),
    ],
)
def test_bad_tables_are_refused_with_file_line_and_column(tmp_path, content, rule):
    table(tmp_path / "test.csv", ARRAYS["x_test"], ARRAYS["y_test"])
    (tmp_path / "train.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=rule) as caught:
        load_dataset(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_missing_table_is_refused(tmp_path):
    table(tmp_path / "train.csv", ARRAYS["x_train"], ARRAYS["y_train"])
    with pytest.raises(DataError, match=r"has no test\.csv; a folder of tables needs train\.csv and test\.csv"):
        load_dataset(str(tmp_path))


OWN = """
import numpy as np

calls = []


def blobs():
    calls.append(1)
    rng = np.random.default_rng()  # another dataset in every call
    y_train, y_test = np.arange(8) % 2, [0, 1, 0, 1]
    return {"x_train": rng.random((8, 3)), "y_train": y_train, "x_test": rng.random((4, 3)), "y_test": y_test}


def broken():
    return 1 / 0


def no_dictionary():
    return "blobs"


def incomplete():
    return {name: array for name, array in blobs().items() if name != "y_test"}


def inconsistent():
    return {**blobs(), "y_test": [0, 1]}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_blobs.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("own_blobs", None)


@pytest.mark.usefixtures("own")
def test_a_function_of_the_users_own_is_called_once():
    first, second = load_dataset("own_blobs:blobs"), load_dataset("own_blobs:blobs")
    assert first.x_train.shape == (8, 3)
    assert np.array_equal(first.x_train, second.x_train)
    assert sys.modules["own_blobs"].calls == [1]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("broken", r"failed: ZeroDivisionError: division by zero \(own_blobs.py, line 1"),
        ("no_dictionary", "must return a dictionary of arrays x_train, y_train, x_test, y_test, not a str"),
        ("incomplete", "it has no y_test"),
        ("inconsistent", "2 test labels for 4 samples; there must be one label a sample"),
        ("nothing", "has no nothing"),
    ],
)
def test_a_function_that_returns_no_dataset_is_refused(name, rule):
    with pytest.raises(AirDistillError, match=rule) as caught:
        load_dataset(f"own_blobs:{name}")
    assert "\n" not in str(caught.value)


def test_what_names_neither_file_nor_function_is_refused():
    with pytest.raises(InputError, match=r"data\.dataset = \"nowhere\": no such file or folder; must be \"mnist\""):
        load_dataset("nowhere")
