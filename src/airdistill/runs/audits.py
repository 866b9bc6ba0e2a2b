"""Audits of a run, kept beside it: a later one that looked less closely does not undo what an earlier one found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airdistill.errors import InputError
from airdistill.runs.folder import AUDITS, RUN, RunError, read_sealed


def note_audit(folder: Path, audit: dict[str, Any]) -> None:
    """Adds an audit, in short, to those of the run in this folder; returns when it is on the disk."""
    stored, _ = read_sealed(folder)
    parts = [name for name in ("exact", "empirical", "membership") if audit[name] is not None]
    kept = {name: audit[name] for name in ("device", "num_rounds", "seed", "violations")}
    entry = {"run": stored["digest"], "parts": parts, **kept}
    path = folder / AUDITS
    whole = _whole_lines(path)
    with path.open("ab") as file:
        file.truncate(sum(map(len, whole)))
        file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def audits_in(folder: Path) -> dict[str, Any] | None:
    """All audits of the run in this folder, and every violation that any of them found; None if there was none."""
    path = folder / AUDITS
    stored, _ = read_sealed(folder)
    try:
        entries = [json.loads(line) for line in _whole_lines(path)]
        own = [entry for entry in entries if entry["run"] == stored["digest"]]
        violations = dict.fromkeys(sentence for entry in own for sentence in entry["violations"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: is damaged; remove it and audit the run again") from None
    return {"audits": own, "violations": list(violations)} if own else None


def _whole_lines(path: Path) -> list[bytes]:
    """With their ends; what a crash left of a last one does not count."""
    content = path.read_bytes() if path.exists() else b""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def check_not_anothers(folder: Path, own: Path | None) -> None:
    """An audit of one run does not belong into the folder of another."""
    if (folder / RUN).exists() and (own is None or own.resolve() != folder.resolve()):
        raise InputError("--out", str(folder), "is the folder of another run")
