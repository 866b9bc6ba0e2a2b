"""Fork commands with a witness: it notes every transmission in a file of its own before it is made.

`kills.py` kills these processes. What its trials start from is prepared here, too. What all
commands import is imported here, and so a fork starts at once.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import airdistill.audit.auditing
import airdistill.learning.pilot
import airdistill.report.audit
import airdistill.report.comparison
import airdistill.report.run
import airdistill.runs.runner  # noqa: F401 - all that commands import
from airdistill import report
from airdistill.cli import main as command_line
from airdistill.privacy.ledger import Ledger
from airdistill.radio import charged_round, trusted_aggregator
from airdistill.runs import executors, worker
from airdistill.runs.folder import RoundFile
from airdistill.scenario.loading import as_toml, load

ROUNDS, NOISES = 5, ("seeded", "secure")
SCHEMES = ("airdistill", "ota_fd", "airdistill_features", "pate", "ota_fedavg", "ota_fl")
ONCE, SEEDED_ONLY = ("pate",), ("ota_fl",)  # votes are sent in one round, and correlated noise is seeded
KINDS = [(noise, scheme) for scheme in SCHEMES for noise in NOISES if noise == "seeded" or scheme not in SEEDED_ONLY]
OPTIONS = ["--eval-every", "2", "--checkpoint-every", "2"]
ALONE = [*OPTIONS, "--threads", "1", "--engine", "torch"]
LIMIT_S = 300.0  # for a command that is not killed


def commanded(arguments: list[str], log: Path, witness: Path, setup: Callable[[], None] | None = None) -> int:
    """Fork a process that runs a command, with its output in `log`; return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _witness_transmissions(witness)
        leave_out_figures()
        vars(executors)["subprocess"] = SimpleNamespace(Popen=_ForkedWorker, PIPE=-1, STDOUT=-2)
        if setup is not None:
            setup()
        sys.argv = ["airdistill", *arguments]
        command_line()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _ForkedWorker:
    """A worker of a comparison, forked instead of started: importing PyTorch takes seconds."""

    def __init__(self, arguments: list[str], **_: Any) -> None:
        (stdin, self._stdin), (stdout, output) = os.pipe(), os.pipe()
        self.pid, self.returncode = os.fork(), 0
        if self.pid == 0:
            for source, target in ((stdin, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            os.closerange(3, 256)
            os.setsid()
            sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
            sys.argv = arguments[2:]
            _run_worker()
        os.close(stdin)
        os.close(output)
        self.stdout = os.fdopen(stdout, encoding="utf-8", errors="replace")

    def __enter__(self) -> _ForkedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        os.close(self._stdin)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _run_worker() -> None:
    code = 0
    try:
        _witness_worker()
        worker.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        os._exit(code)


_EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt" viewBox="0 0 9 9"/>'


def leave_out_figures() -> None:
    """Reports have no figures: drawing takes most of the time, and touches no file."""
    for module in (report.run, report.comparison, report.audit):
        module.svg_of = lambda _: _EMPTY  # type: ignore[attr-defined]


_witness_file = Path(os.devnull)


def _note(**what: Any) -> None:
    """Append to the witness file; return when it is on disk."""
    with _witness_file.open("ab") as file:
        file.write((json.dumps(what) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def _witness_worker() -> None:
    _note(what="worker", pid=os.getpid())


def _witness_transmissions(path: Path) -> None:
    """Note each transmission before it is made, with the number of entries that its ledger has for the round."""
    global _witness_file
    _witness_file = path
    charge, transmit, free = Ledger.charge, charged_round.ChargedRound.transmit, charged_round.error_free
    answer = trusted_aggregator.ChargedVotes.transmit
    last: dict[str, Any] = {}

    def charging(ledger: Ledger, release: Any) -> str:
        key = charge(ledger, release)
        if ledger.chain is not None:
            last.update(path=ledger.chain.path, round=release.round_index, secure=ledger.header.noise == "secure")
        return key

    def sent(of: bytes) -> None:
        if last:  # an audit's ledgers are in memory: it simulates
            digest = os.urandom(16).hex() if last["secure"] else hashlib.sha256(of).hexdigest()
            entries = _entries(last["path"])[last["round"]]
            _note(what="sent", folder=str(last["path"].parent), round=last["round"], id=digest, entries=entries)

    def transmitting(this: Any, vectors: Any) -> Any:
        sent(pickle.dumps((replace(this.noise, permission=None), np.asarray(vectors))))
        return transmit(this, vectors)

    def answering(this: Any, votes: Any) -> Any:
        sent(pickle.dumps((this.noise_seed, np.asarray(votes))))
        return answer(this, votes)

    def sending(ideal: Any, slot_s: float) -> Any:
        sent(pickle.dumps(np.asarray(ideal)))
        return free(ideal, slot_s)

    Ledger.charge = charging  # type: ignore[method-assign]
    charged_round.ChargedRound.transmit = transmitting  # type: ignore[method-assign]
    trusted_aggregator.ChargedVotes.transmit = answering  # type: ignore[method-assign]
    charged_round.error_free = sending


def _entries(path: Path) -> Counter[int]:
    """The releases of the last run in a ledger, by round, read without the program's own reader."""
    found: Counter[int] = Counter()
    for line in path.read_bytes().split(b"\n")[:-1]:
        body = json.loads(line)
        if body["kind"] == "opening":
            found.clear()
        elif body["kind"] == "release":
            found[body["round"]] += 1
    return found


def ended(child: int, deadline_s: float) -> int | None:
    """The exit code of a process; None if it is still running after that time."""
    until = time.monotonic() + deadline_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(min(0.005, max(0.0, until - time.monotonic())))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


# What trials start from.


def write_scenarios(base: Path) -> None:
    """Three devices with softmax regressions on blobs of three classes."""
    rng = np.random.default_rng(0)
    centres = 1.5 * rng.standard_normal((3, 4))
    labels = {"train": np.arange(60) % 3, "test": np.arange(30) % 3}
    samples = {part: centres[which] + rng.standard_normal((len(which), 4)) for part, which in labels.items()}
    arrays = {f"x_{part}": samples[part] for part in samples} | {f"y_{part}": labels[part] for part in labels}
    np.savez(base / "blobs.npz", **arrays)  # type: ignore[arg-type]
    # A plan takes the rounds of a recorded channel, in place of the hundreds that it would draw.
    gains = rng.standard_normal((8, 3)) + 1j * rng.standard_normal((8, 3))
    np.savez(base / "trace.npz", channel=4e-6 * gains)
    changes = [
        "fleet.devices=3", f"data.dataset={base / 'blobs.npz'}", "data.samples_per_device=20", "privacy.epsilon=4",
        f"learning.rounds={ROUNDS}", "learning.max_rounds=20", "learning.model=softmax_regression",
        "learning.local_epochs=0", "learning.initial_lr=0.1", f"radio.trace={base / 'trace.npz'}",
        "public.samples=12", "public.features=3", "public.broadcast=model",
        "federated.server_optimizer=adam", "federated.clip_quantile=0.5",
    ]  # fmt: skip
    trained = {"learning": {"local_epochs": 1}}
    correlated = {"privacy": {"correlation": "blt"}, "fleet": {"sampling": "cyclic", "cycle": 3}}
    for noise in NOISES:
        scenario = load("quick", [*changes, f"privacy.noise={noise}"])
        own = {"pate": trained, "ota_fedavg": trained, **({"ota_fl": correlated} if noise == "seeded" else {})}
        (base / f"{noise}.toml").write_text(
            as_toml(scenario.model_copy(update={"overrides": {**scenario.overrides, **own}}))
        )


def _stop_before(last: int) -> None:
    """Stop with a round that is recorded and not in a checkpoint."""
    append = RoundFile.append

    def appending(this: RoundFile, record: dict[str, Any]) -> None:
        append(this, record)
        if record["round"] == max(1, last - 1):
            os.kill(os.getpid(), signal.SIGKILL)

    RoundFile.append = appending  # type: ignore[method-assign]


def warm_up(base: Path) -> None:
    """Run a command in this process: what it imports and caches is there in every fork."""
    leave_out_figures()
    for arguments in (["run", str(base / "secure.toml"), "--out", str(base / "warm"), *ALONE], ["report"], ["certify"]):
        sys.argv = ["airdistill", *arguments, *([] if arguments[1:] else [str(base / "warm")])]
        with suppress(SystemExit), redirect_stdout(io.StringIO()):
            command_line()


def continuing(scheme: str) -> str:
    """The option with which a run of this scheme continues another."""
    return "--after" if scheme == "airdistill_features" else "--ledger"


def prepare(base: Path, noise: str, scheme: str) -> None:
    """Folders that trials start from or are compared with: ended, interrupted, continued, and a comparison."""
    start, more = ["run", str(base / f"{noise}.toml"), "--scheme", scheme, *ALONE], ["--set", "privacy.epsilon=8"]
    chain = [*start, *more, continuing(scheme), str(base / f"first-{noise}-{scheme}")]
    kinds = {"ended": start, "cut": start, "chain": chain}
    kinds["compare"] = ["compare", start[1], "--schemes", f"{scheme},local_only", "--jobs", "1", *OPTIONS]
    for kind, arguments in kinds.items():
        folder = base / f"{kind}-{noise}-{scheme}"
        witness = base / f"{folder.name}.witness"
        setup = partial(_stop_before, 1 if scheme in ONCE else ROUNDS) if kind == "cut" else None
        child = commanded([*arguments, "--out", str(folder)], base / "log", witness, setup)
        code = ended(child, LIMIT_S)
        if code != (-signal.SIGKILL if kind == "cut" else 0):
            raise SystemExit(f"{folder.name}: exit {code}: {(base / 'log').read_text()}")
        if kind == "ended":
            shutil.copytree(folder, base / f"first-{noise}-{scheme}")
