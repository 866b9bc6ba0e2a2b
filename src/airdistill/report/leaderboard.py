"""The leaderboard on the terminal, as files, and on one page."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill import __version__
from airdistill.files import jsonable, write_whole
from airdistill.report.page import Block, Bullets, Command, DataTable, Page, Paragraph, Section, render
from airdistill.report.wording import number, percent, quantity, span
from airdistill.reproduce.leaderboard import Question, Setting, Tuned, all_tuned, ranked_schemes
from airdistill.reproduce.standings import BASELINE, OURS, Board, Standing, read_board
from airdistill.units import rounded_up

NAME = "leaderboard"
_RESULTS = ("scheme", "accuracy", "worst device", "rounds", "uplink", "energy", "ε declared", "whom to trust", "tuning")
_VERDICTS = ("scheme", f"{OURS} is", "difference", f"against {BASELINE}")
_NOTES = (
    "Accuracy: of the devices' own models on the common test set, mean over devices, then over seeds ± 95 % interval. "
    "Private schemes come first, then those that need a trusted aggregator, then ceilings without privacy.",
    "Whom to trust: the assumptions that can turn out false. Noise of these runs is seeded, and so they are "
    "simulations; with secret noise the guarantee holds under these assumptions.",
    "Tuning: runs that chose the settings, on seeds that are not shown; where, if not in this setting.",
)
_VERDICT_NOTE = (
    "From differences by seed: ahead or behind if the 95 % interval excludes 0, level if it contains 0, undecided "
    "until both schemes have ended for all seeds, of which there must be two."
)
_LENS_NOTE = (
    "ε of the worst device and seed, at its δ: for each sensitivity model, what it is worth if only the named noise "
    "counts. * is what the scheme declares. For knowledge of trained models only `device` is a valid bound; for "
    "feature means, `class_mean` is exact as well. `paper` is not a valid bound. ∞: nothing that counts protects it."
)


def write_leaderboard(folder: Path) -> tuple[Board, Path]:
    """Write `leaderboard.html` and `leaderboard.csv` from the runs in a folder; return the page's path, too."""
    board = read_board(folder)
    write_whole(folder / f"{NAME}.csv", leaderboard_csv(board).encode())
    write_whole(folder / f"{NAME}.html", render(leaderboard_page(board)).encode())
    return board, folder / f"{NAME}.html"


def problems_of(board: Board) -> list[str]:
    """Return a line for every run that failed or is damaged."""
    return [
        f"{setting.name}/{line}"
        for setting, standings in board.standings.items()
        for row in standings
        for line in row.problems
    ]


def unfinished(board: Board) -> list[str]:
    """Return what was asked for and has not ended for all seeds, as SETTING/SCHEME."""
    asked, num_seeds = board.question, board.question.seeds
    return [
        f"{setting.name}/{row.scheme}"
        for setting, standings in board.standings.items()
        for row in standings
        if asked.asks_for(setting, row.scheme) and (row.result is None or row.result.num_seeds < num_seeds)
    ]


# Words.


def tuning_in_words(row: Standing, setting: Setting) -> str:
    """Return the number of tuning runs, and the setting that they were for if it is another one."""
    tuned = row.tuned
    if tuned.runs == 0:
        return "none"
    own = setting if tuned.epsilon is not None else Setting(setting.data, setting.split, None)
    return f"{tuned.runs} runs" + ("" if tuned.setting == own else f", for {tuned.setting.name}")


def trust_in_words(row: Standing) -> str:
    """Name the assumptions that can turn out false; without privacy no guarantee has any."""
    if row.kind == "nothing sent":
        return "no one: nothing is sent"
    if row.kind == "without privacy":
        return "everyone: no protection"
    if row.result is None:
        return ""
    return ", ".join(row.trusts) or "no other party"


def _declared(row: Standing) -> str:
    return "" if row.result is None else rounded_up(row.result.epsilon_by_model[row.result.sensitivity])


def _result_row(row: Standing, setting: Setting, num_seeds: int) -> tuple[str, ...]:
    result = row.result
    if result is None:
        state = "failed" if row.problems else "not run"
        return (row.scheme, state, "", "", "", "", "", trust_in_words(row), tuning_in_words(row, setting))
    return (
        row.scheme if result.num_seeds == num_seeds else f"{row.scheme} ({result.num_seeds} of {num_seeds} seeds)",
        percent(result.accuracy),
        percent(result.worst_device),
        span(*result.rounds),
        quantity(result.uplink_seconds, "s"),
        quantity(result.joules, "J"),
        _declared(row),
        trust_in_words(row),
        tuning_in_words(row, setting),
    )


def _verdict_rows(standings: tuple[Standing, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row in standings:
        if row.ours_against is not None:
            base = "" if row.against_baseline is None else row.against_baseline.numbers
            rows.append((row.scheme, row.ours_against.verdict, row.ours_against.numbers, base))
    return rows


def _lens_table(standings: tuple[Standing, ...]) -> DataTable | None:
    """Return ε by sensitivity model and trust model, a row for each private scheme and sensitivity model."""
    shown = [row for row in standings if row.epsilon and row.kind in ("private", "trusted aggregator")]
    trusts = tuple(dict.fromkeys(trust for row in shown for by_trust in row.epsilon.values() for trust in by_trust))
    rows = []
    for row in shown:
        assert row.result is not None
        for model, by_trust in row.epsilon.items():
            star = "*" if model == row.result.sensitivity else ""
            rows.append((row.scheme, f"{model}{star}", *(_lens(by_trust.get(trust)) for trust in trusts)))
    columns = ("scheme", "neighbours", *(trust.replace("_", " ") for trust in trusts))
    return DataTable(columns, tuple(rows), notes=(_LENS_NOTE,), align_left=(0, 1)) if rows else None


def _lens(epsilon: float | None) -> str:
    return "" if epsilon is None else rounded_up(epsilon)


# The terminal.


def print_leaderboard(board: Board, console: Console) -> None:
    """Print the results and verdicts of every setting that has runs, and what failed."""
    for setting, standings in board.standings.items():
        ended = tuple(row for row in standings if row.result is not None)
        console.print(f"[bold]{escape(setting.name)}[/bold]")
        table = Table(box=SIMPLE_HEAD)
        for column in ("scheme", "accuracy", "uplink", "ε", "verdict"):
            table.add_column(column, justify="left" if column == "scheme" else "right", no_wrap=column == "scheme")
        for row in ended:
            shown = _result_row(row, setting, board.question.seeds)
            verdict = "" if row.ours_against is None else row.ours_against.verdict
            table.add_row(*map(escape, (shown[0], shown[1], shown[4], shown[6], verdict)))
        console.print(table)
        for row in ended:
            if row.ours_against is not None:
                console.print(escape(f"{OURS} against {row.scheme}: {row.ours_against.numbers}"), highlight=False)
    console.print(f"[dim]Verdict: where {OURS} stands against the scheme. {_VERDICT_NOTE}[/dim]", highlight=False)
    for line in problems_of(board):
        console.print(escape(line))


# Files.


def leaderboard_to_dict(board: Board, folder: Path) -> dict[str, Any]:
    """Return every standing for JSON. Null is infinity, or what a scheme without a finished run does not have."""
    written: dict[str, Any] = jsonable(
        {
            "folder": str(folder),
            "seeds": board.question.seeds,
            "standings": [row for row in _records(board) if row["seeds"] > 0],
            "unfinished": unfinished(board),
            "problems": problems_of(board),
        }
    )
    return written


def leaderboard_csv(board: Board) -> str:
    """Return a line for each setting and scheme. Intervals of a single seed, and schemes without runs, are empty."""
    records = _records(board)
    columns = list(dict.fromkeys(name for row in records for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def _records(board: Board) -> list[dict[str, Any]]:
    return [_record(setting, row) for setting, rows in board.standings.items() for row in rows]


def _record(setting: Setting, row: Standing) -> dict[str, Any]:
    result, tuned = row.result, row.tuned
    record: dict[str, Any] = {
        "setting": setting.name, "data": setting.data, "split": setting.split, "epsilon": setting.epsilon,
        "scheme": row.scheme, "kind": row.kind, "seeds": 0 if result is None else result.num_seeds,
    }  # fmt: skip
    if result is not None:
        record |= {
            "accuracy": result.accuracy.mean, "accuracy_half": result.accuracy.half,
            "worst_device": result.worst_device.mean, "rounds": span(*result.rounds),
            "uplink_seconds": result.uplink_seconds.mean, "joules": result.joules.mean,
        }  # fmt: skip
    record |= {"trusts": "; ".join(row.trusts), "tuning_runs": tuned.runs, "tuned_for": tuned.setting.name}
    for name, against in (("ours_against", row.ours_against), ("against_baseline", row.against_baseline)):
        if against is not None:
            gap = None if against.paired is None else against.paired.gap
            record |= {f"{name}_verdict": against.verdict} if name == "ours_against" else {}
            record |= {f"{name}_gap": gap and gap.mean, f"{name}_half": gap and gap.half}
    for model, by_trust in row.epsilon.items():
        record |= {f"epsilon_{model}_{trust}": epsilon for trust, epsilon in by_trust.items()}
    return record


# The page.


def leaderboard_page(board: Board) -> Page:
    """Return an overview, every setting that has runs, the tuning, and the command."""
    question = board.question
    sections = [_setting_section(setting, rows, board) for setting, rows in board.standings.items()]
    return Page(
        title="Leaderboard: all schemes on the same settings",
        subtitle=f"{question.seeds} seeds; preset skewed" + (", reduced by --quick" if question.quick else ""),
        sections=(
            Section("Overview", _overview(board)),
            *sections,
            Section("Tuning", (Paragraph(_TUNING_TEXT), _tuning_table())),
            Section("How to reproduce", (Command(command_of(question)),)),
        ),
        made_by=f"airdistill {__version__}",
    )


_TUNING_TEXT = (
    "Settings of every scheme, where they were tuned and with how many runs. Settings are carried over to settings of "
    "the leaderboard that were not tuned: to another ε first, then to another split, then to other data. Budgets are "
    "not equal: the column says so."
)


def _overview(board: Board) -> tuple[Block, ...]:
    settings = list(board.standings)
    by_scheme = {setting: {row.scheme: row for row in rows} for setting, rows in board.standings.items()}
    rows = []
    for scheme in ranked_schemes():
        cells = [_cell(by_scheme[setting].get(scheme)) for setting in settings]
        if any(cells):
            rows.append((scheme, *cells))
    blocks: list[Block] = [DataTable(("scheme", *(setting.name for setting in settings)), tuple(rows))]
    blocks.append(Bullets(tuple(_leader_in_words(board, setting) for setting in settings)))
    if problems := problems_of(board):
        blocks.append(Bullets(tuple(problems), "warning"))
    return tuple(blocks)


def _cell(row: Standing | None) -> str:
    return "" if row is None or row.result is None else percent(row.result.accuracy)


def _leader_in_words(board: Board, setting: Setting) -> str:
    leader = board.leader(setting)
    if leader is None:
        return f"{setting.name}: no private scheme has ended."
    assert leader.result is not None
    return f"{setting.name}: {leader.scheme} has the highest mean of the private schemes that trust no aggregator."


def _setting_section(setting: Setting, standings: tuple[Standing, ...], board: Board) -> Section:
    results = tuple(_result_row(row, setting, board.question.seeds) for row in standings)
    lenses = _lens_table(standings)
    blocks: list[Block] = [
        DataTable(_RESULTS, results, notes=_NOTES, align_left=(0, 7, 8), highlight_rows=_ours_among(standings)),
        DataTable(_VERDICTS, tuple(_verdict_rows(standings)), notes=(_VERDICT_NOTE,), align_left=(0, 1, 2, 3)),
    ]
    return Section(setting.name, tuple(blocks) if lenses is None else (*blocks, lenses))


def _ours_among(standings: tuple[Standing, ...]) -> tuple[int, ...]:
    return tuple(place for place, row in enumerate(standings) if row.scheme == OURS)


def _tuning_table() -> DataTable:
    columns = ("schemes", "tuned in", "runs", "seeds", "tried", "settings", "note")
    return DataTable(columns, tuple(_tuning_row(entry) for entry in all_tuned()), align_left=(0, 1, 3, 4, 5, 6))


def _tuning_row(entry: Tuned) -> tuple[str, ...]:
    tried = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in entry.tried.items())
    settings = ", ".join(
        f"{section}.{name} = {value if isinstance(value, str) else number(value, 'g')}"
        for section, values in entry.settings.items()
        for name, value in values.items()
    )
    seeds = ", ".join(map(str, entry.seeds))
    return (", ".join(entry.schemes), entry.setting.name, str(entry.runs), seeds, tried, settings, entry.note)


def command_of(question: Question) -> str:
    """Return the command that repeats a leaderboard; it does not depend on how often it was interrupted."""
    words = ["airdistill leaderboard"]
    if dict(question.sources) != {"mnist": "mnist"}:
        words += [
            f"--data {name}" + ("" if name == source else f"={source}") for name, source in question.sources.items()
        ]
    words += [f"--seeds {question.seeds}"]
    words += ["--quick"] if question.quick else []
    words += [f"--only '{pattern}'" for pattern in question.only]
    words += [f"--set '{change}'" for change in question.changes]
    words += [] if question.options.device == "cpu" else [f"--device {question.options.device}"]
    return " ".join(words)
