import importlib.util
import sys
from pathlib import Path

PATH = Path(__file__).parents[2] / "benchmarks" / "theorem1.py"


def load_benchmark():
    spec = importlib.util.spec_from_file_location("theorem1", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["theorem1"] = module
    spec.loader.exec_module(module)
    return module


def test_the_bound_holds_where_its_assumptions_do_and_the_gap_alone_shrinks():
    benchmark = load_benchmark()
    short, long = benchmark.measure(8, 3), benchmark.measure(80, 3)
    for outcome in (short, long):
        assert 0 < outcome.measured <= outcome.bound
        # Ω without the constant 8γL2S stays above the measurement, too.
        assert outcome.measured <= outcome.gap
    assert long.measured < short.measured
