import importlib.util
import sys
from pathlib import Path

PATH = Path(__file__).parents[2] / "benchmarks" / "feature_neighbours.py"


def load_benchmark():
    spec = importlib.util.spec_from_file_location("feature_neighbours", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["feature_neighbours"] = module
    spec.loader.exec_module(module)
    return module


def test_no_neighbour_moves_feature_means_beyond_their_bound_and_the_worst_reach_it():
    found = load_benchmark().measure(1200)
    assert len(found) == 6
    for case, ratios in found.items():
        assert 0.99 < ratios.max() <= 1 + 1e-12, case
