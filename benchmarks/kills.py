"""Kills real processes at random moments, damages a file after half of the kills, and looks for anything that was lost.

    python benchmarks/kills.py --kills 1000

Every trial forks a process that runs one command (`run`, `resume`, `compare`, `audit`, `certify` or `report`; secure or
seeded noise; with or without `--ledger` or, for feature means, `--after`) on a tiny fleet, and sends it SIGKILL at a
random moment. Then the command is resumed or repeated, and all commands that read the folder are run. A witness file,
written by the killed processes and flushed before each transmission, knows independently of the ledger what was
transmitted. Counted are

* lost releases: transmissions that a ledger which is still accepted does not count;
* uncharged transmissions: those that were not on disk in the ledger when they were made;
* tracebacks, and other ends of a command than success or an error of one line;
* changed runs: ended runs in which any byte changed but for reports, certificates and audits, and undamaged runs with
  seeded noise that did not end with the bytes of a run that was never killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import forked_commands as forked
import torch

from airdistill.privacy.ledger import Ledger
from airdistill.runs.accounts import trusted_ledger

AUDIT = ["--parts", "exact", "--rounds", "2", "--transcripts", "2", "--candidates", "2"]
# What an ended run need not keep: files that commands make anew, and what an audit adds.
MADE_ANEW = {"lock", "report.html", "certificate.json", "certificate.html", "timings.jsonl", "audits.jsonl"}
MADE_ANEW |= {"audit.json", "audit.html"}
FINAL = ("rounds.jsonl", "ledger.jsonl", "summary.json")


# A trial.


@dataclass
class Findings:
    """What all trials have found."""

    kills: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    commands: int = 0
    transmissions: int = 0
    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def fault(self, kind: str, text: str) -> None:
        self.faults[kind].append(text)
        print(f"  {kind}: {text}", flush=True)


@dataclass
class Trial:
    """One folder, in which one command is killed; `label` reproduces it."""

    label: str
    base: Path
    folder: Path
    rng: random.Random
    findings: Findings
    noise: str
    scheme: str

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.witness = self.folder / "witness"
        self.witness.touch()
        self.damaged: Path | None = None

    @property
    def scenario(self) -> str:
        return str(self.base / f"{self.noise}.toml")

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def copy(self, name: str, to: str) -> Path:
        """Copy a folder that was prepared, with what its witness saw."""
        source = self.base / f"{name}-{self.noise}-{self.scheme}"
        shutil.copytree(source, self.folder / to)
        with self.witness.open("a") as file:
            for line in (self.base / f"{source.name}.witness").read_text().splitlines():
                file.write(json.dumps({**json.loads(line), "folder": str(self.folder / to)}) + "\n")
        return self.folder / to

    def command(self, arguments: list[str]) -> int:
        """Run a command to its end; note a traceback, or another end than success or an error of one line."""
        self.findings.commands += 1
        log = self.folder / "log"
        child = forked.commanded(arguments, log, self.witness)
        code = forked.ended(child, forked.LIMIT_S)
        if code is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        text = log.read_text(errors="replace")
        errors = [line for line in text.splitlines() if line.startswith("error:")]
        if "Traceback" in text or code not in (0, 2) or (code == 2 and len(errors) != 1):
            shown = " | ".join(text.splitlines()[-6:])
            self.findings.fault("tracebacks", f"{self.label}: {' '.join(arguments)}: exit {code}: {shown}")
        return -1 if code is None else code

    def killed(self, arguments: list[str], seconds: float) -> bool:
        """Run a command and kill it, or one of its workers, after a random part of that time; False if it ended."""
        child = forked.commanded(arguments, self.folder / "log", self.witness)
        done = forked.ended(child, self.rng.uniform(0, seconds))
        workers = self.workers()
        if done is None and workers and self.rng.random() < 0.5 and forked.alive(workers[-1]):
            os.kill(workers[-1], signal.SIGKILL)
            forked.ended(child, forked.LIMIT_S)
        elif done is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        time.sleep(0.02)  # a worker that was just forked has not noted its id yet
        while any(map(forked.alive, self.workers())):  # they end with the process that started them
            time.sleep(0.01)
        return done is None

    def workers(self) -> list[int]:
        return [note["pid"] for note in self.notes("worker")]

    def notes(self, what: str) -> list[dict[str, Any]]:
        """What the witness has seen of one kind; a line that a kill has cut counts if the kill came after it."""
        notes = []
        for line in self.witness.read_text().splitlines():
            try:
                notes.append(json.loads(line))
            except ValueError:
                continue
        return [note for note in notes if note["what"] == what]


def arguments_of(action: str, trial: Trial) -> list[str]:
    """Prepare the trial's folder for an action, and return the command that is to be killed."""
    start = ["run", trial.scenario, "--scheme", trial.scheme, "--out", str(trial.run), *forked.ALONE]
    if action == "run":
        return start
    if action == "run --ledger":
        first = trial.copy("ended", "first")
        return [*start, "--set", "privacy.epsilon=8", forked.continuing(trial.scheme), str(first)]
    if action == "compare":
        schemes = f"{trial.scheme},local_only"
        return [
            "compare",
            trial.scenario,
            "--schemes",
            schemes,
            "--out",
            str(trial.run),
            "--jobs",
            "1",
            *forked.OPTIONS,
        ]
    trial.copy("cut" if action == "resume" else "ended", "run")
    command, *_ = action.split(",")
    return [command, str(trial.run), *(AUDIT if command == "audit" else [])]


ACTIONS = {"run": 30, "run --ledger": 20, "resume": 15, "compare": 10, "audit, ended": 10}
ACTIONS |= {"certify, ended": 5, "report, ended": 5, "resume, ended": 5}


def recover(action: str, trial: Trial, arguments: list[str], seconds: float) -> None:
    """Resume or repeat the command, sometimes after one more kill, and run all commands that read the folder."""
    resume = ["resume", str(trial.run)]
    started = any((trial.run / name).exists() for name in ("run.json", "comparison.json"))
    repeat = resume if started else arguments
    if trial.rng.random() < 0.3 and trial.killed(repeat, seconds):
        trial.findings.kills["while it recovers"] += 1
    if action == "run --ledger" and not started and trial.rng.random() < 0.5:
        trial.command([each for each in arguments if each not in ("--ledger", "--after", str(trial.folder / "first"))])
    if repeat is arguments and not (trial.run / "run.json").exists():
        trial.command(arguments)
    if action == "compare" and trial.rng.random() < 0.5:
        trial.command(arguments)
    before = contents(trial.run)
    if trial.command(resume) == 2 and action != "compare":
        compare_bytes(trial, trial.run, before, "was changed by a resume that was refused")
    for folder in (trial.run, trial.folder / "first"):
        if folder.exists():
            trial.command(["certify", str(folder)])
            trial.command(["report", str(folder)])


def damage(trial: Trial) -> None:
    """Damage one file of the trial's runs."""
    files = [path for name in ("run", "first") for path in sorted((trial.folder / name).rglob("*")) if path.is_file()]
    files = [path for path in files if path.name != "lock"]
    if not files:
        return
    path, rng = trial.rng.choice(files), trial.rng
    content = path.read_bytes()
    kind = rng.choice(["truncated", "flipped", "deleted", "emptied", "garbage line"])
    if kind == "truncated":
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind == "flipped" and content:
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :])
    elif kind == "deleted":
        path.unlink()
    elif kind == "emptied":
        path.write_bytes(b"")
    else:
        lines = content.splitlines(keepends=True)
        lines.insert(rng.randrange(len(lines) + 1), b"\xff{garbage\n")
        path.write_bytes(b"".join(lines))
    trial.damaged = path
    trial.label += f", {kind} {path.relative_to(trial.folder)}"
    trial.findings.damages[f"{kind}"] += 1


# What must hold.


def contents(folder: Path) -> dict[str, bytes]:
    """The files that a command must not change once a run has ended, by name."""
    if not folder.exists():
        return {}
    files = [path for path in folder.iterdir() if path.is_file() and path.name not in MADE_ANEW]
    return {path.name: path.read_bytes() for path in files if not path.name.startswith(".")}


def compare_bytes(trial: Trial, folder: Path, before: dict[str, bytes], fault: str) -> None:
    for name, content in before.items():
        now = (folder / name).read_bytes() if (folder / name).exists() else b""
        continued = folder.name == "first" and name.startswith("ledger") and b'"continued"' in _ledger_end(folder)
        if now != content and not continued:
            trial.findings.fault("changed runs", f"{trial.label}: {folder.name}/{name} {fault}")


def _ledger_end(folder: Path) -> bytes:
    path = folder / "ledger.jsonl"
    return path.read_bytes().rstrip(b"\n").rsplit(b"\n", 1)[-1] if path.exists() else b""


def check_charges(trial: Trial) -> None:
    """Every transmission had an entry on disk when it was made; repeated ones with seeded noise are the same."""
    sent: dict[tuple[str, int], set[str]] = defaultdict(set)
    for note in trial.notes("sent"):
        key = (note["folder"], note["round"])
        sent[key].add(note["id"])
        if note["entries"] < len(sent[key]):
            trial.findings.fault("uncharged transmissions", f"{trial.label}: {key}")
    trial.findings.transmissions += len(trial.notes("sent"))


def check_releases(trial: Trial) -> None:
    """Ledgers that are still accepted count every transmission, also those of the run that they continue."""
    sent: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for note in trial.notes("sent"):
        sent[note["folder"]][note["round"]].add(note["id"])
    for sealed in sorted(trial.folder.rglob("run.json")):
        folder = sealed.parent
        try:
            ledger = trusted_ledger(folder)
        except Exception as error:
            if trial.damaged is None:
                trial.findings.fault("lost releases", f"{trial.label}: {folder.name} is refused: {error}")
            continue
        counted = Counter(release.round_index for release in ledger.releases)
        missing = {index for index, ids in sent[str(folder)].items() if counted[index] < len(ids)}
        if missing:
            trial.findings.fault("lost releases", f"{trial.label}: rounds {sorted(missing)} of {folder.name}")
        first = trial.folder / "first"
        if folder == trial.run and b'"continued"' in _ledger_end(first):
            earlier = sum(len(ids) for ids in sent[str(first)].values())
            if ledger.num_earlier < earlier:
                fault = f"{trial.label}: {ledger.num_earlier} of {earlier} releases of the run that is continued"
                trial.findings.fault("lost releases", fault)


def check_result(action: str, trial: Trial) -> None:
    """An undamaged run with seeded noise ended with the bytes of a run that was never killed."""
    if trial.damaged is not None or trial.noise != "seeded":
        return
    kind = {"run --ledger": "chain", "compare": "compare"}.get(action, "ended")
    if kind == "chain" and Ledger.read(trial.run / "ledger.jsonl").num_earlier == 0:
        return  # it was killed before it had continued the first ledger, and then started without it
    whole = trial.base / f"{kind}-{trial.noise}-{trial.scheme}"
    for expected in sorted(path for name in FINAL for path in whole.rglob(name)):
        name = expected.relative_to(whole)
        if not (trial.run / name).exists() or (trial.run / name).read_bytes() != expected.read_bytes():
            trial.findings.fault("changed runs", f"{trial.label}: {name} is not that of a run that was never killed")


def play(action: str, trial: Trial, seconds: float) -> bool:
    """Kill one command and check everything; return False if it ended before it was killed."""
    arguments = arguments_of(action, trial)
    if not trial.killed(arguments, seconds):
        return False
    trial.findings.kills[action] += 1
    trial.findings.trials += 1
    check_charges(trial)
    check_releases(trial)
    folders = [path.parent for path in trial.folder.rglob("summary.json")]
    # Half of all trials have damage, although a kill can leave nothing that could be damaged.
    if 2 * trial.findings.damages.total() < trial.findings.trials:
        damage(trial)
    before = {folder: contents(folder) for folder in folders}
    recover(action, trial, arguments, seconds)
    for folder, files in before.items():
        compare_bytes(trial, folder, files, "of an ended run was changed")
    check_charges(trial)
    check_releases(trial)
    check_result(action, trial)
    return True


# All trials.


def measured(base: Path, findings: Findings) -> dict[str, float]:
    """Seconds that each action takes without a kill."""
    seconds = {}
    for action in ACTIONS:
        trial = Trial(action, base, base / "measured", random.Random(0), findings, "secure", "airdistill")
        arguments = arguments_of(action, trial)
        started = time.monotonic()
        trial.command(arguments)
        seconds[action] = time.monotonic() - started
        shutil.rmtree(trial.folder)
    return seconds


@contextmanager
def prepared_folder(keep: Path | None) -> Iterator[Path]:
    """A folder with everything that trials start from; in memory if possible, because commands flush to the disk."""
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="kills-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        forked.write_scenarios(base)
        forked.warm_up(base)
        yield base
    finally:
        if keep is None:
            shutil.rmtree(base, ignore_errors=True)


def attempt(kills: int, seed: int, keep: Path | None, minutes: float = float("inf")) -> Findings:
    """Kill so many commands, or as many as this time allows, and return what was found."""
    findings, number, started = Findings(), 0, time.monotonic()
    torch.set_num_threads(1)
    with prepared_folder(keep) as base:
        prepare = cache(partial(forked.prepare, base))  # a dozen kills do not meet all kinds
        prepare("secure", "airdistill")
        seconds = measured(base, findings)
        shown = ", ".join(f"{name} {each:.2f}" for name, each in seconds.items())
        print(f"seconds without a kill: {shown}", flush=True)
        while findings.kills.total() < kills and time.monotonic() - started < 60 * minutes:
            number += 1
            rng = random.Random(f"{seed} {number}")
            (action,) = rng.choices(list(ACTIONS), list(ACTIONS.values()))
            noise, scheme = rng.choice(forked.KINDS)
            prepare(noise, scheme)
            label = f"trial {number}: {action}, {noise}, {scheme}"
            trial = Trial(label, base, base / f"trial-{number}", rng, findings, noise, scheme)
            faults = sum(map(len, findings.faults.values()))
            play(action, trial, seconds[action])
            if keep is not None and sum(map(len, findings.faults.values())) > faults:
                shutil.copytree(trial.folder, keep / trial.folder.name, dirs_exist_ok=True)
            shutil.rmtree(trial.folder)
            if number % 50 == 0:
                print(f"{findings.kills.total()} kills in {time.monotonic() - started:.0f} s", flush=True)
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill commands at random moments, and look for what was lost.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="copy the folders of trials with faults here")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time, whatever was done")
    given = parser.parse_args()
    findings = attempt(given.kills, given.seed, given.keep, given.minutes)
    print(f"{findings.kills.total()} kills: {', '.join(f'{n} of {name}' for name, n in findings.kills.most_common())}")
    damages = ", ".join(f"{n} {name}" for name, n in findings.damages.most_common())
    print(f"{findings.damages.total()} damaged files in {findings.trials} trials: {damages}")
    print(f"{findings.commands} commands ran to their end, {findings.transmissions} transmissions were seen")
    for kind in ("lost releases", "uncharged transmissions", "tracebacks", "changed runs"):
        print(f"{len(findings.faults[kind])} {kind}")
    sys.exit(1 if any(findings.faults.values()) else 0)


if __name__ == "__main__":
    main()
