"""The other runs of a chain: where they are, and whether their noise is that of this run.

A run that continues a ledger shares its devices and, as a rule, its seed. Noise that both runs drew can be removed by
comparing them. The ledger that is continued names the folder of its successor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airdistill.audit.empirical import Correlation
from airdistill.audit.received import WhitenedTable, correlation_between, whitened_table
from airdistill.errors import AirDistillError
from airdistill.files import json_value
from airdistill.privacy.chain import digest_of_body
from airdistill.privacy.ledger import Ledger
from airdistill.runs.folder import LEDGER
from airdistill.runs.record import RunRecord


def table_of(line: Any, ledger: Ledger) -> WhitenedTable | None:
    """The noise of a kept table; None if misaligned signals or secret participation are part of the difference."""
    terms = ledger.header.terms
    if terms.get("csi_error_limit", 0.0) != 0 or terms.get("participation_hidden", False):
        return None
    if not ledger.header.payload.startswith("knowledge"):
        return None
    return whitened_table(dict(line))


def along_chain(folder: Path, ledger: Ledger, tables: list[WhitenedTable]) -> tuple[dict[str, Correlation], list[str]]:
    """Correlations with the runs before and after this one, by folder, and notes on what could not be compared."""
    found: dict[str, Correlation] = {}
    notes: list[str] = []
    others, missing = _chained(folder, ledger)
    for other in others:
        try:
            theirs = Ledger.read(other / LEDGER)
            lines = RunRecord.read(other).rounds
        except AirDistillError as error:
            notes.append(f"The run in {other} of this chain cannot be compared: {error}.")
            continue
        kept = [table for line in lines if (table := table_of(line, theirs)) is not None]
        correlation = correlation_between(tables, kept)
        if correlation is None:
            notes.append(f"The run in {other} of this chain keeps no tables that can be compared.")
        else:
            found[f"the run in {other}"] = correlation
    return found, [*notes, *missing]


def _chained(folder: Path, ledger: Ledger) -> tuple[list[Path], list[str]]:
    """The folders of the run that continues this one and of the one that it continues, and notes on those not found."""
    others, notes = [], []
    assert ledger.chain is not None
    if ledger.closed:
        successor = Path(ledger.chain.last["in"])
        places = [place for place in (successor, folder.parent / successor.name) if (place / LEDGER).is_file()]
        others += places[:1]
        if not places:
            notes.append(f"The run that continues this ledger is not at {successor}: its noise was not compared.")
    if ledger.num_earlier:
        before = _predecessor(folder, digest_of_body(ledger.header.to_dict()))
        others += [] if before is None else [before]
        if before is None:
            rule = "is not beside it: their noise was not compared"
            notes.append(f"This run continues the ledger of another, whose folder {rule}.")
    return others, notes


def _predecessor(folder: Path, header_digest: str) -> Path | None:
    """The folder beside this one whose ledger ends with a note that this run continues it."""
    for path in sorted(folder.resolve().parent.glob(f"*/{LEDGER}")):
        try:
            last = json_value(path.read_bytes().splitlines()[-1])
            if last["kind"] == "continued" and last["by"] == header_digest:
                return path.parent
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue  # another run's damaged ledger is not this audit's matter
    return None
