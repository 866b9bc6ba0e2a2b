"""Audits of a run, kept beside it: a later one that looked less closely does not undo what an earlier one found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airdistill.errors import InputError
from airdistill.runs.folder import AUDITS, RUN, RunError, read_sealed


def note_audit(folder: Path, audit: dict[str, Any]) -> None:
    """Adds an audit, in short, to those of the run in this folder."""
    stored, _ = read_sealed(folder)
    parts = [name for name in ("exact", "empirical", "membership") if audit[name] is not None]
    kept = {name: audit[name] for name in ("device", "num_rounds", "seed", "violations")}
    entry = {"run": stored["digest"], "parts": parts, **kept}
    with (folder / AUDITS).open("a") as file:
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def audits_in(folder: Path) -> dict[str, Any] | None:
    """All audits of the run in this folder, and every violation that any of them found; None if there was none."""
    path = folder / AUDITS
    if not path.exists():
        return None
    stored, _ = read_sealed(folder)
    try:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        own = [entry for entry in entries if entry["run"] == stored["digest"]]
        violations = dict.fromkeys(sentence for entry in own for sentence in entry["violations"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: is damaged; audit the run again, or remove it") from None
    return {"audits": own, "violations": list(violations)} if own else None


def check_not_anothers(folder: Path, own: Path | None) -> None:
    """An audit of one run does not belong into the folder of another."""
    if (folder / RUN).exists() and (own is None or own.resolve() != folder.resolve()):
        raise InputError("--out", str(folder), "is the folder of another run")
