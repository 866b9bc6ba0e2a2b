"""The round loop: plays rounds, writes them down, and can be stopped and gone on with at any moment."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from airdistill import DEFAULT_SCHEME, __version__
from airdistill.files import jsonable, write_whole
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.runs.accounts import begin_ledger, certify, mark_of, spent_by_earlier_runs, trusted_ledger
from airdistill.runs.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from airdistill.runs.folder import (
    CERTIFICATE,
    PLAN,
    ROUNDS,
    SCENARIO,
    SUMMARY,
    TIMINGS,
    RoundFile,
    locked,
    new_folder,
    read_sealed,
    seal,
    simulated,
    write_json,
    writing,
)
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord
from airdistill.runs.simulation import Simulation, check_unchanged
from airdistill.scenario.loading import as_toml, with_absolute_paths
from airdistill.scenario.model import Scenario
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme

logger = logging.getLogger(__name__)
OnRound = Callable[[dict[str, Any], int], None]


def run(
    scenario: Scenario,
    scheme: str = DEFAULT_SCHEME,
    rounds: int | None = None,
    out: str | Path | None = None,
    options: RunOptions | None = None,
    on_round: OnRound | None = None,
    ledger: str | Path | None = None,
) -> RunRecord:
    """Trains a scenario's fleet with a scheme, in a new folder; `on_round(record, num_rounds)` follows it.

    `ledger` is that of an earlier run of the same devices, or its folder: what they spent then, they do not have now.
    """
    chosen, before = load_scheme(scheme), None if ledger is None else Path(ledger)
    adapted = with_absolute_paths(as_run_by(chosen, scenario, rounds))
    options = _fitting(adapted, options or RunOptions())
    planned = plan_scheme(chosen, adapted, spent_by_earlier_runs(before, adapted))
    simulation = Simulation(planned, chosen, options)
    folder = new_folder(None if out is None else Path(out), f"{scenario.name}-{chosen.name}")
    with locked(folder), writing(folder):
        simulation.ledger = begin_ledger(folder, simulation.ledger.header, before)
        write_whole(folder / SCENARIO, as_toml(adapted).encode())
        write_json(folder / PLAN, simulation.plan.to_dict())
        how = {"airdistill": __version__, "scheme": scheme, "options": options.to_dict()}
        seal(folder, {**how, "inputs": simulation.inputs_digest, "ledger": mark_of(simulation.ledger)})
        return _play(folder, simulation, RoundFile(folder / ROUNDS, 0, None), on_round)


def resume(folder: str | Path, on_round: OnRound | None = None) -> RunRecord:
    """Goes on with a run that was stopped or killed, to the same bytes as if it had not been."""
    folder = simulated(Path(folder))
    with locked(folder):
        stored, planned = read_sealed(folder)
        if stored["airdistill"] != __version__:
            logger.warning(
                "begun by airdistill %s, resumed by %s: last bits may differ", stored["airdistill"], __version__
            )
        options = RunOptions(**stored["options"])
        simulation = Simulation(Plan.from_dict(planned), load_scheme(stored["scheme"]), options)
        check_unchanged(folder, simulation.inputs_digest, stored, "resumed")
        checkpoint = newest_checkpoint(folder)
        simulation.ledger = trusted_ledger(folder, 0 if checkpoint is None else checkpoint.round_index)
        with writing(folder):
            if checkpoint is None:
                return _play(folder, simulation, RoundFile(folder / ROUNDS, 0, None), on_round)
            simulation.restore(checkpoint.round_index, checkpoint.tensors, checkpoint.numbers)
            rounds = RoundFile(folder / ROUNDS, checkpoint.rounds_bytes, checkpoint.rounds_digest)
            return _play(folder, simulation, rounds, on_round)


def _fitting(scenario: Scenario, options: RunOptions) -> RunOptions:
    """Secure noise cannot be drawn again: each round is saved, so that a kill costs the budget of one round at most."""
    fitting = options.resolved()
    return replace(fitting, checkpoint_every=1) if scenario.privacy.noise == "secure" else fitting


def _play(folder: Path, simulation: Simulation, rounds: RoundFile, on_round: OnRound | None) -> RunRecord:
    """Round by round:

    1. play it, which charges the ledger before anything is sent, and append its record;
    2. note the time that it took, in a file of its own;
    3. checkpoint every few rounds, at the end, and when asked to stop;
    4. at the end, or when a device cannot pay for another round, write summary and certificate.
    """
    num_rounds, ended_because = simulation.plan.num_rounds, None
    with _stop_requests() as stop_asked:
        while simulation.round_index < num_rounds:
            started = time.perf_counter()
            try:
                record = jsonable(simulation.advance(), nan_is_null=True)
            except BudgetExceeded as reason:
                if simulation.ledger.num_releases == 0:
                    raise
                ended_because = str(reason)
                break
            rounds.append(record)
            _note_time(folder, simulation.round_index, time.perf_counter() - started)
            if on_round is not None:
                on_round(record, num_rounds)
            due = simulation.round_index % simulation.options.checkpoint_every == 0
            if due or stop_asked() or simulation.round_index == num_rounds:
                _checkpoint(folder, simulation, rounds)
            if stop_asked():
                raise KeyboardInterrupt
    if ended_because is not None:
        _checkpoint(folder, simulation, rounds)
    # The last record from the file: a run may have been killed after its last round and before this.
    last = (RunRecord.read(folder).rounds or ({},))[-1]
    write_json(folder / CERTIFICATE, certify(folder).to_dict())
    write_json(folder / SUMMARY, jsonable(_summary(simulation, last, ended_because)))
    return RunRecord.read(folder)


def _checkpoint(folder: Path, simulation: Simulation, rounds: RoundFile) -> None:
    rounds.sync()
    tensors, numbers = simulation.state()
    ledger = mark_of(simulation.ledger)
    reached = simulation.round_index
    save_checkpoint(folder, Checkpoint(reached, tensors, numbers, rounds.num_bytes, rounds.digest, ledger))


def _summary(simulation: Simulation, last: dict[str, Any], ended_because: str | None) -> dict[str, Any]:
    return {
        "name": simulation.plan.scenario.name,
        "scheme": simulation.scheme.name,
        "rounds": simulation.round_index,
        "ended_because": ended_because,
        "accuracy": last["accuracy"] if "accuracy" in last else simulation.accuracy(),
        "random_iterate": {"round": simulation.iterate_round, "accuracy": simulation.iterate_accuracy()},
        "uplink_seconds": simulation.uplink_seconds,
        "planned_joules": simulation.planned_joules,
        "measured_joules": simulation.measured_joules,
        "epsilon_spent": float(simulation.ledger.epsilon().max()),
        "epsilon_by_model": {model: simulation.epsilon_spent(model) for model in SENSITIVITY_MODELS},
        "sensitivity": simulation.plan.scenario.privacy.sensitivity,
        "link": _link(simulation),
        "assumptions": list(simulation.plan.assumptions),
    }


def _link(simulation: Simulation) -> dict[str, Any] | None:
    """Who sends to how many antennas, for whoever lays runs side by side; None where nothing is sent."""
    scenario = simulation.plan.scenario
    if simulation.scheme.releases == "nothing":
        return None
    drawn = scenario.fleet.sampled_devices if simulation.plan.uplink.kind == "gradient" else None
    return {
        "antennas": scenario.radio.antennas,
        "participation": scenario.fleet.participation,
        "participation_hidden": scenario.fleet.participation_hidden,
        "draws": drawn if scenario.fleet.sampling != "none" else None,
    }


def _note_time(folder: Path, round_index: int, seconds: float) -> None:
    with (folder / TIMINGS).open("a") as file:
        file.write(json.dumps({"round": round_index, "seconds": round(seconds, 6)}) + "\n")


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM lets the round end and be saved; a second one stops at once."""
    asked = False

    def note(number: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, signal.default_int_handler)

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, note)
    except ValueError:  # not in the main thread: whoever owns that thread handles signals
        previous.clear()
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
