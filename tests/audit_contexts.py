"""Small audit contexts, ready within milliseconds."""

from small_worlds import small_scenario

from airdistill.audit.context import Link, replay
from airdistill.privacy.ledger import Ledger
from airdistill.runs.options import RunOptions
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme
from airdistill.streams import noise_seed

FLOAT64 = RunOptions(threads=1, dtype="float64")


def no_progress(_stage, _done, _total):
    pass


def planned(folder, scheme="ota_fd", *changes):
    chosen = load_scheme(scheme)
    return plan_scheme(chosen, as_run_by(chosen, small_scenario(folder, *changes))), chosen


def noise_of_run(context, folder):
    """The noise that a run drew in this folder, as a noise source that ignores its seed."""
    keys = Ledger.read(folder / "ledger.jsonl").noise_keys

    def source(_, index, design):
        return context.link.seeded_noise(noise_seed(context.scenario.seed, keys[index - 1]), index, design)

    return source


def small_context(folder, scheme="ota_fd", *changes, rounds=3, device=0):
    plan, chosen = planned(folder, scheme, *changes)
    return replay(plan, Link(plan, device), FLOAT64.learning_engine(), chosen, rounds, no_progress)
