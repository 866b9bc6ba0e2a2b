"""A simulated round as recordings: the round is computed again from the run's folder, and sends nothing new.

Rounds are replayed like those of a resumed run: from a checkpoint before the round or from the start, with a ledger in
memory that repeats what was charged. Seeded noise is then the same; secure noise cannot be drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import Grid
from airdistill.errors import InputError
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.radio.charged_round import ChargedRound, filled_symbols, waveform_round
from airdistill.radio.decoding import decode_file
from airdistill.radio.frames import pilot_amplitude, received_frame, transmitted_frame
from airdistill.radio.iq import SCRAMBLING_SEED
from airdistill.radio.recordings import Contents, write_recording
from airdistill.radio.waveform_link import WaveformRound
from airdistill.runs.accounts import trusted_ledger
from airdistill.runs.checkpoint import newest_checkpoint
from airdistill.runs.earlier import AFTER
from airdistill.runs.folder import RunError, read_sealed, simulated
from airdistill.runs.options import RunOptions
from airdistill.runs.record import undamaged_run
from airdistill.runs.simulation import Simulation, check_unchanged, own_code
from airdistill.schemes.base import Round
from airdistill.schemes.registry import load_scheme
from airdistill.streams import noise_seed

RECORDINGS = "recordings"
_SAME_NOISE = 1e-6  # relative, of what the run recorded
OnReplayed = Callable[[int, int], None]


@dataclass
class _ObservedRound(Round):
    """A round that keeps the signals which devices send, `[device, row, slot]`, and the gains by which they do.

    `numbers` `[row, slot]` are what the server received, before it divides by the scale; `noise_var` `[row]` is what
    the round measured.
    """

    signals: ComplexArray | None = None
    numbers: FloatArray | None = None
    sent_by: RoundDesign | None = None
    noise_var: FloatArray | None = None

    def charge(self, design: RoundDesign | None = None) -> None:
        super().charge(design)
        charged = self._charged
        assert isinstance(charged, ChargedRound)
        air = charged.air
        assert air is not None

        def add(transmitted: ComplexArray) -> ComplexArray:
            received = air(transmitted)
            self.signals, self.numbers, self.sent_by = transmitted, received.real, charged.design
            return received

        charged.air = add


@dataclass(frozen=True)
class Exported:
    """The files of a round, and how far the decoded reception is from what the run received, relative to its rms."""

    round_index: int
    reception: Path
    transmissions: dict[int, Path] = field(default_factory=dict)
    difference: float = 0.0
    keeps_every_sample: bool = False

    def to_dict(self) -> dict[str, Any]:
        sent = {str(device): str(path) for device, path in self.transmissions.items()}
        what = {"round": self.round_index, "reception": str(self.reception), "transmissions": sent}
        return {**what, "decodes_to_within": self.difference}


def export_round(
    folder: Path,
    round_index: int,
    out: Path | None = None,
    devices: Sequence[int] | None = None,
    datatype: str = "cf32_le",
    date: str | None = None,
    on_replayed: OnReplayed | None = None,
) -> Exported:
    """Write the reception of a run's round, and what devices (by default all) transmitted in it.

    Raise `InputError` if the run cannot be repeated, or transmits no samples.
    """
    plan, stored = _exportable(folder)
    chosen = _chosen(plan, devices)
    replayed = _replayed(folder, plan, stored, round_index, on_replayed or (lambda *_: None))
    assert replayed.signals is not None
    assert replayed.numbers is not None
    assert replayed.sent_by is not None
    this, design = _air_of(replayed), replayed.sent_by
    signals = filled_symbols(this, design, replayed.signals.real)
    contents = _contents(plan, this, design, stored["scheme"], _ledger_digest(folder))
    samples, _ = received_frame(this, signals)
    target, carrier = out or folder / RECORDINGS / f"round-{round_index:04d}", plan.scenario.radio.carrier
    reception = write_recording(target / "reception", samples, contents, carrier, datatype, date)
    transmissions = {}
    for device in chosen:
        sent, own = transmitted_frame(this, signals[device], device), _of_device(contents, device)
        stem = target / f"device-{device:04d}"
        transmissions[device] = write_recording(stem, sent, own, carrier, datatype, date)
    # Against the numbers of the run's own air, not of the recorded frame: a frame that lacks something would agree.
    decoded, received = decode_file(reception, start=0).numbers, replayed.numbers
    difference = float(np.abs(decoded - received).max() / np.sqrt(np.mean(received**2)))
    return Exported(round_index, reception, transmissions, difference, plan.scenario.waveform.observed == "elements")


def _exportable(folder: Path) -> tuple[Plan, dict[str, Any]]:
    """The plan of a run and what `run.json` says, if its rounds can be repeated sample by sample."""
    stored, planned = read_sealed(simulated(folder))
    plan = Plan.from_dict(planned)
    scenario = plan.scenario
    if load_scheme(stored["scheme"]).releases != "private":
        raise InputError("--scheme", stored["scheme"], "transmits nothing over a radio; export a private scheme's run")
    if scenario.air.medium != "waveform":
        rule = 'the run has no samples: set air.medium = "waveform" and waveform.kind = "ofdm", and run it again'
        raise InputError("air.medium", scenario.air.medium, rule)
    if scenario.privacy.noise == "secure":
        rule = "secure noise is new each time, and what was sent cannot be computed again; export a run with seeded"
        raise InputError("privacy.noise", "secure", rule)
    if plan.uplink.uses_tdma:
        raise InputError("--scheme", stored["scheme"], "devices send one after another; export a scheme that adds")
    return plan, stored


def _chosen(plan: Plan, devices: Sequence[int] | None) -> list[int]:
    num_devices = plan.fleet.num_devices
    chosen = list(range(num_devices)) if devices is None else list(dict.fromkeys(devices))
    for device in chosen:
        if not 0 <= device < num_devices:
            raise InputError("--devices", device, f"the run has devices 0 to {num_devices - 1}")
    return chosen


def _replayed(
    folder: Path, plan: Plan, stored: dict[str, Any], round_index: int, on_replayed: OnReplayed
) -> _ObservedRound:
    """The round, played again. Raise `RunError` if it comes out differently."""
    record = undamaged_run(folder)
    if not 1 <= round_index <= len(record.rounds):
        raise InputError("--round", round_index, f"{folder} has rounds 1 to {len(record.rounds)}")
    simulation, recorded = _restored(folder, plan, stored, round_index), record.rounds[round_index - 1]
    this = _observed(simulation, round_index, on_replayed)
    noise_var = recorded.get("measured_noise_var") or []
    if this is None or this.noise_var is None or not _is_same(this.noise_var, noise_var):
        rule = "comes out differently here: another version or type of processor may have run or resumed it"
        raise RunError(f"{folder}: round {round_index} {rule}; export it where it was run")
    return this


def _air_of(this: Round) -> WaveformRound:
    """What the samples of a round depend on, with the noise of its entry in the ledger, the latest one."""
    key = this.ledger.noise_keys[this.ledger.num_releases - 1]
    return waveform_round(this.plan, this.source, this.index, noise_seed(this.scenario.seed, key))


def _observed(simulation: Simulation, round_index: int, on_replayed: OnReplayed) -> _ObservedRound | None:
    """The round, played after those before it; None if any of them was not charged like this when the run played it."""
    try:
        while simulation.round_index < round_index - 1:
            simulation.advance()
            on_replayed(simulation.round_index, round_index)
        this = simulation.begin_round(_ObservedRound)
        assert isinstance(this, _ObservedRound)
        reception = simulation.scheme.play(this).reception
    except BudgetExceeded:
        return None
    on_replayed(round_index, round_index)
    this.noise_var = None if reception is None else reception.squared_error
    return None if simulation.ledger.releases else this


def _restored(folder: Path, plan: Plan, stored: dict[str, Any], round_index: int) -> Simulation:
    """The run as it was before the round, or at a checkpoint before, with a ledger that cannot be written."""
    scheme = load_scheme(stored["scheme"])
    simulation = Simulation(plan, scheme, RunOptions.from_dict(stored["options"]))
    check_unchanged(folder, simulation.inputs_digest, own_code(plan, scheme), stored, "exported")
    checkpoint = newest_checkpoint(folder, before=round_index)
    if checkpoint is None and AFTER in stored:
        rule = "began with the models of another run, and has no checkpoint before the round"
        raise RunError(f"{folder}: round {round_index} cannot be computed again: the run {rule}")
    # Charges after the checkpoint are repeated in memory; without its chain the ledger's file is out of reach.
    simulation.ledger = trusted_ledger(folder, 0 if checkpoint is None else checkpoint.round_index)
    simulation.ledger.chain = None
    if checkpoint is not None:
        simulation.restore(checkpoint.round_index, checkpoint.tensors, checkpoint.numbers)
    return simulation


def _is_same(found: FloatArray, recorded: Sequence[float | None]) -> bool:
    stored = np.array([np.nan if value is None else value for value in recorded])
    return found.shape == stored.shape and np.allclose(found, stored, rtol=_SAME_NOISE, atol=0, equal_nan=True)


def _ledger_digest(folder: Path) -> str:
    chain = trusted_ledger(folder).chain
    assert chain is not None
    return chain.digest


def _contents(plan: Plan, this: WaveformRound, design: RoundDesign, scheme: str, ledger: str) -> Contents:
    grid = Grid.of(plan.scenario)
    assert grid is not None
    return Contents(
        grid=grid,
        spreading=this.wave.spreading,
        scrambling_seed=SCRAMBLING_SEED,
        round_index=this.round_index,
        rows=plan.uplink.num_rows,
        entries=plan.uplink.vector_length,
        rx_scale=design.rx_scale,
        pilot_amplitude=pilot_amplitude(this),
        noise_power=this.noise_power,
        noise_var=design.effective_noise_var,
        scheme=scheme,
        payload=plan.uplink.payload.kind,
        ledger=ledger,
    )


def _of_device(contents: Contents, device: int) -> Contents:
    return Contents(**{**vars(contents), "device": device})
