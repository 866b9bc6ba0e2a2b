"""The golden record itself: whole, and compared as it should be."""

import json
import sys

import pytest
from golden.cases import CASES, SCHEMES
from golden.comparing import first_difference, recorded_digests, recorded_numbers
from golden.recording import digest_of

from airdistill.cli import main


def test_every_scheme_has_cases(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["airdistill", "schemes", "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert set(json.loads(capsys.readouterr().out)) == SCHEMES


def test_every_case_was_recorded():
    assert set(recorded_digests()["cases"]) == set(CASES)


def test_digests_are_those_of_the_numbers():
    kept = {name: {file: digest_of(each) for file, each in files.items()} for name, files in recorded_numbers().items()}
    assert kept == recorded_digests()["cases"]


def test_a_difference_is_named_by_its_path():
    was = {"a": [{"b": [1.0, 2.0, None]}], "c": "x"}
    assert first_difference(was, was, None) is None
    assert first_difference(was, {"a": [{"b": [1.0, 2.5, None]}], "c": "y"}, None) == ("$.a[0].b[1]", 2.0, 2.5)
    assert first_difference(was, {**was, "c": "y"}, 1e-6) == ("$.c", "x", "y")
    assert first_difference(was, {**was, "d": 1}, 1e-6) == ("$.d", "(absent)", 1)
    assert first_difference([1, True], [1, 1], 1e-6) == ("$[1]", True, 1)


def test_numbers_agree_within_the_tolerance():
    was = {"a": [1.0, 1e-9], "digest": "x"}
    assert first_difference(was, {"a": [1.0 + 5e-7, 0.0], "digest": "y"}, 1e-6) is None
    assert first_difference(was, {"a": [1.0 + 5e-6, 0.0], "digest": "x"}, 1e-6) == ("$.a[0]", 1.0, 1.0 + 5e-6)
    assert first_difference(was, {"a": [1.0, 1e-9], "digest": "y"}, None) == ("$.digest", "x", "y")
