import numpy as np

from airdistill.streams import stream


def draws(*key):
    return stream(*key).standard_normal(1000)


def test_a_stream_depends_on_its_key_alone():
    first = draws(7, "noise", 3, 2)
    draws(7, "noise", 4, 2)
    assert np.array_equal(first, draws(7, "noise", 3, 2))


def test_streams_of_different_keys_are_independent():
    keys = [(7, "noise", 3, 2), (8, "noise", 3, 2), (7, "channel", 3, 2), (7, "noise", 2, 3), (7, "noise", 3, 3)]
    correlation = np.corrcoef([draws(*key) for key in keys])
    # Five standard errors of a correlation over 1000 draws.
    assert np.abs(correlation - np.eye(len(keys))).max() < 5 / np.sqrt(1000)


def test_a_stream_does_not_overlap_with_the_next_one():
    long = stream(0, "noise", 0, 0).standard_normal(100_000)
    assert not np.isin(stream(0, "noise", 0, 1).standard_normal(100), long).any()
