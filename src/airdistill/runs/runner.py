"""The round loop: computes rounds and records them; it can be stopped at any moment and resumed bit-identically."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from airdistill import DEFAULT_SCHEME, __version__
from airdistill.data.public import num_test_samples
from airdistill.errors import InputError
from airdistill.files import jsonable, write_whole
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.runs.accounts import (
    begin_ledger,
    certify,
    check_repeatable,
    mark_of,
    spent_by_earlier_runs,
    trusted_ledger,
)
from airdistill.runs.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from airdistill.runs.earlier import AFTER, EarlierModels
from airdistill.runs.folder import (
    CERTIFICATE,
    PLAN,
    ROUNDS,
    SCENARIO,
    SUMMARY,
    TIMINGS,
    RoundFile,
    RunError,
    locked,
    new_folder,
    read_sealed,
    seal,
    simulated,
    what_is_left,
    write_json,
    write_summary,
    writing,
)
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord, damage_in
from airdistill.runs.simulation import OWN_CODE, Simulation, check_unchanged, own_code, repeats_charged_rounds
from airdistill.runs.tracking import MakeTracker, OnRound, Tracking, chosen_trackers
from airdistill.scenario.loading import ScenarioLike, as_scenario, as_toml, with_absolute_paths
from airdistill.scenario.model import Scenario
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme

logger = logging.getLogger(__name__)
_OTHER_PROGRAM = (
    "started by airdistill %s and resumed by %s, or with own code that cannot be compared: rounds that were charged "
    "after round %d stay counted, and are charged again with new noise"
)


def run(
    scenario: ScenarioLike,
    scheme: str = DEFAULT_SCHEME,
    rounds: int | None = None,
    out: str | Path | None = None,
    options: RunOptions | None = None,
    on_round: OnRound | None = None,
    ledger: str | PathLike[str] | None = None,
    after: str | PathLike[str] | None = None,
    track: Sequence[str | MakeTracker] = (),
) -> RunRecord:
    """Train the fleet of a scenario with a scheme, following the plan that `airdistill.plan` returns.

    `rounds` replaces the scenario's number of rounds. `out` is an empty folder; by default a new one under `runs/`.
    `on_round(record, num_rounds)` is called after every round. `ledger` is the folder of an earlier run of the same
    devices, or its ledger: the privacy budget that they spent there is not available to this run. `after` is the folder
    of an ended run: its ledger is continued, and every device starts with the model that it had there. `track` names
    trackers ("csv", "tensorboard", "mlflow"), or has functions that make them (`airdistill.runs.tracking`).
    """
    trackers = chosen_trackers(track)
    scenario, chosen = as_scenario(scenario), load_scheme(scheme)
    before = _continued(ledger, after)
    adapted = with_absolute_paths(as_run_by(chosen, scenario, rounds))
    options = _fitting(adapted, options or RunOptions())
    planned = plan_scheme(chosen, adapted, spent_by_earlier_runs(before, adapted))
    simulation = Simulation(planned, chosen, options)
    models = None if after is None else EarlierModels.of(Path(after))
    if models is not None:
        simulation.start_from(models)
    folder = new_folder(None if out is None else Path(out), f"{scenario.name}-{chosen.name}")
    with locked(folder), writing(folder):
        simulation.ledger = begin_ledger(folder, simulation.ledger.header, before)
        write_whole(folder / SCENARIO, as_toml(adapted).encode())
        write_json(folder / PLAN, simulation.plan.to_dict())
        how: dict[str, Any] = {"airdistill": __version__, "scheme": scheme, "options": options.to_dict()}
        if code := own_code(planned, chosen):
            how[OWN_CODE] = code
        if models is not None:
            # Before the seal: a run that was killed before its first round resumes from these models, wherever RUN is.
            _checkpoint(folder, simulation, RoundFile(folder / ROUNDS, 0, None))
            how[AFTER] = {"run": str(models.folder.resolve()), "models": models.digest}
        seal(folder, {**how, "inputs": simulation.inputs_digest, "ledger": mark_of(simulation.ledger)})
        with Tracking(trackers, folder) as tracking:
            return _play(folder, simulation, RoundFile(folder / ROUNDS, 0, None), tracking.also(on_round, folder))


def resume(
    folder: str | PathLike[str],
    on_round: OnRound | None = None,
    track: Sequence[str | MakeTracker] = (),
    eval_devices: int | None = None,
    eval_samples: int | None = None,
) -> RunRecord:
    """Resume a run that was stopped or killed; the result is bit-identical to that of an uninterrupted run.

    A run that has ended is returned as it is. Raise `RunError` if rounds would be lost. `eval_devices` and
    `eval_samples` replace those options of the run for the rounds that are left.
    """
    folder, trackers = simulated(Path(folder)), chosen_trackers(track)
    with locked(folder):
        if (folder / SUMMARY).exists():
            return RunRecord.read(folder)
        stored, planned = read_sealed(folder)
        resumed = Plan.from_dict(planned)
        options = _measured(resumed.scenario, RunOptions.from_dict(stored["options"]), eval_devices, eval_samples)
        simulation = Simulation(resumed, load_scheme(stored["scheme"]), options)
        code = own_code(simulation.plan, simulation.scheme)
        check_unchanged(folder, simulation.inputs_digest, code, stored, "resumed")
        repeats = repeats_charged_rounds(stored, code)
        checkpoint = newest_checkpoint(folder)
        if checkpoint is None:
            if AFTER in stored:
                problem = "its checkpoints were removed or are damaged, and the models that it began with"
                raise RunError(f"{folder}: {problem}; {what_is_left(folder)}")
            check_repeatable(folder, options.checkpoint_every)
        reached = 0 if checkpoint is None else checkpoint.round_index
        # Of another program the vectors may differ: a repeated round then is a new release, with noise of its own.
        simulation.ledger = trusted_ledger(folder, reached if repeats else None)
        if not repeats and simulation.ledger.last_round > reached:
            logger.warning(_OTHER_PROGRAM, stored["airdistill"], __version__, reached)
        with writing(folder), Tracking(trackers, folder) as tracking:
            on_round = tracking.also(on_round, folder)
            if checkpoint is None:
                return _play(folder, simulation, RoundFile(folder / ROUNDS, 0, None), on_round)
            simulation.restore(checkpoint.round_index, checkpoint.tensors, checkpoint.numbers)
            damage = damage_in(folder)
            rounds = RoundFile(folder / ROUNDS, checkpoint.rounds_bytes, checkpoint.rounds_digest)
            for problem in damage:
                logger.warning("%s; the rounds after round %d are computed again", problem, checkpoint.round_index)
            return _play(folder, simulation, rounds, on_round)


def _continued(ledger: str | PathLike[str] | None, after: str | PathLike[str] | None) -> Path | None:
    """The run whose ledger is continued, which is also the one whose models are taken over."""
    if ledger is not None and after is not None and Path(ledger).resolve() != Path(after).resolve():
        raise InputError("--ledger", str(ledger), f"--after {after} continues that run's ledger; leave --ledger out")
    if after is not None and not Path(after).is_dir():
        raise InputError("--after", str(after), "no such folder; give that of an ended run")
    given = ledger if after is None else after
    return None if given is None else Path(given)


def _fitting(scenario: Scenario, options: RunOptions) -> RunOptions:
    """Return the options resolved, and the sample of the evaluation decided.

    With secure noise, which cannot be drawn again, every round is saved: a run that is killed then loses the privacy
    budget of one round at most.
    """
    fitting = options.resolved().for_fleet(scenario.num_devices, num_test_samples(scenario))
    return replace(fitting, checkpoint_every=1) if scenario.privacy.noise == "secure" else fitting


def _measured(
    scenario: Scenario, begun_with: RunOptions, eval_devices: int | None, eval_samples: int | None
) -> RunOptions:
    """The options with another sample for the evaluation, if one is given."""
    if eval_devices is None and eval_samples is None:
        return begun_with
    devices = begun_with.eval_devices if eval_devices is None else eval_devices
    samples = begun_with.eval_samples if eval_samples is None else eval_samples
    changed = replace(begun_with, eval_devices=devices, eval_samples=samples)
    return changed.for_fleet(scenario.num_devices, num_test_samples(scenario))


def _play(folder: Path, simulation: Simulation, rounds: RoundFile, on_round: OnRound | None) -> RunRecord:
    """Compute the remaining rounds, and return the record. For each round:

    1. advance the simulation, which charges the ledger before anything is transmitted, and append the round's record;
    2. write the time that it took to a separate file;
    3. write a checkpoint if one is due, after the last round, and when a stop is requested.

    After the last round, or when a device's budget does not allow another one, write summary and certificate.
    """
    num_rounds, ended_because, saved = simulation.plan.num_rounds, None, None
    with _stop_requests() as stop_requested:
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
            if due or stop_requested() or simulation.round_index == num_rounds:
                _checkpoint(folder, simulation, rounds)
                saved = simulation.round_index
            if stop_requested():
                raise KeyboardInterrupt
    # A round that was not played may have been that of the random iterate, which the state keeps since.
    if ended_because is not None and not saved == simulation.round_index != simulation.iterate_round - 1:
        _checkpoint(folder, simulation, rounds)
    # The last record is read from the file: a run may have been killed between its last round and this line.
    recorded = RunRecord.read(folder).rounds
    last = dict(recorded[-1]) if recorded else {}
    write_json(folder / CERTIFICATE, certify(folder).to_dict())
    write_summary(folder, jsonable(_summary(simulation, last, ended_because)))
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
        **_shares(simulation),
        "sensitivity": simulation.plan.scenario.privacy.sensitivity,
        "link": _link(simulation),
        "assumptions": list(simulation.plan.assumptions),
        **({} if simulation.class_labels is None else {"class_labels": simulation.class_labels}),
    }


def _shares(simulation: Simulation) -> dict[str, Any]:
    """How the budget μ² of the device that spent most was shared by runs; nothing unless models were taken over."""
    ledger = simulation.ledger
    if AFTER not in ledger.header.terms or not ledger.header.enforced or simulation.plan.uplink.participation.is_secret:
        return {}
    spent, before = (each / ledger.header.mu**2 for each in (ledger.squared_mu(), ledger.squared_mu_before()))
    device = int(np.argmax(spent))
    shares = {"earlier_runs": before[device], "this_run": spent[device] - before[device], "left": 1 - spent[device]}
    return {"budget_shares": {name: float(share) for name, share in shares.items()}}


def _link(simulation: Simulation) -> dict[str, Any] | None:
    """Return which devices transmit to how many antennas, for comparisons; None if nothing is transmitted."""
    scenario = simulation.plan.scenario
    if simulation.scheme.releases == "nothing":
        return None
    fleet, is_gradient = scenario.fleet, simulation.plan.uplink.kind == "gradient"
    return {
        "antennas": scenario.radio.antennas,
        "participation": fleet.participation,
        "participation_hidden": fleet.participation_hidden,
        "draws": fleet.sampled_devices if is_gradient and fleet.sampling == "with_replacement" else None,
        **({"own_participation": fleet.sampling} if ":" in fleet.sampling else {}),
        **({} if fleet.cycle is None else {"cycle": fleet.cycle}),
    }


def _note_time(folder: Path, round_index: int, seconds: float) -> None:
    with (folder / TIMINGS).open("a") as file:
        file.write(json.dumps({"round": round_index, "seconds": round(seconds, 6)}) + "\n")


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield whether a stop is requested: a first Ctrl-C or SIGTERM lets the round end, a second one interrupts it."""
    requested = False

    def note(number: int, _frame: object) -> None:
        nonlocal requested
        requested = True
        signal.signal(number, signal.default_int_handler)

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, note)
    except ValueError:  # this is not the main thread, which alone can handle signals
        previous.clear()
    try:
        yield lambda: requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
