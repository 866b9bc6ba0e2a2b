import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "gnuradio_round.py"


def load_benchmark():
    spec = importlib.util.spec_from_file_location("gnuradio_round", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gnuradio_round"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["channel_model", "selective_fading_model"])
def test_a_round_through_gnu_radio_is_within_1_db_of_the_prediction(kind):
    pytest.importorskip("zmq")
    from airdistill.radio.gnu_radio import python_with_gnu_radio

    if python_with_gnu_radio() is None:
        pytest.skip("GNU Radio is not installed")
    found = load_benchmark().measure(kind, num_devices=8, num_rounds=4, seed=1)
    assert abs(found.difference_db) < 1
    assert found.receiver_noise.mean() > 0.3 * found.predicted.mean()  # which GNU Radio adds
