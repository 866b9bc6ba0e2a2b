"""Plans at every point of a grid, without training: the planner's own maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill import DEFAULT_SCHEME
from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.planning.forecast import LIMITING_FACTORS
from airdistill.planning.plan import Plan
from airdistill.runs.comparison import Arm, Comparison, swept
from airdistill.runs.folder import new_folder
from airdistill.runs.grid import Grid, cells_of
from airdistill.runs.options import plan
from airdistill.runs.tables import Row, csv_of, has_module, write_parquet
from airdistill.scenario.loading import ScenarioLike

PLANS = "plans.csv"


@dataclass(frozen=True)
class PlannedSweep:
    """One row for each point, scheme and seed. A plan that cannot be made has a `problem`, and no numbers."""

    folder: Path
    comparison: Comparison
    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        return f"PlannedSweep({str(self.folder)!r}: {len(self.rows)} plans over {', '.join(self.comparison.fields)})"


def sweep_plans(
    scenario: ScenarioLike,
    over: Mapping[str, Sequence[Any]] | Grid,
    schemes: Sequence[str] = (DEFAULT_SCHEME,),
    seeds: int = 1,
    rounds: int | None = None,
    out: str | Path | None = None,
) -> PlannedSweep:
    """Plan what `sweep` with the same arguments would run, and write the numbers of all plans as one table.

    A combination that the planner rejects is a row with its problem; if it rejects all, the first is raised.
    """
    comparison = swept(scenario, over, schemes, seeds, rounds)
    rows = tuple(_row(comparison.arm(task.label), task.seed) for task in comparison.tasks)
    if all(row["problem"] for row in rows):
        raise AirDistillError(rows[0]["problem"])
    folder = new_folder(None if out is None else Path(out), f"{comparison.name}-plans")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_whole(folder / PLANS, csv_of(rows, columns).encode())
    if has_module("pyarrow"):
        write_parquet(folder / "plans.parquet", rows, columns)
    return PlannedSweep(folder, comparison, rows)


def _row(arm: Arm, seed: int) -> Row:
    known: Row = {"label": arm.label, "scheme": arm.scheme, "seed": seed, **cells_of(arm.point)}
    try:
        planned = plan(arm.with_seed(seed), arm.scheme, arm.rounds)
    except AirDistillError as problem:
        return {**known, "problem": str(problem)}
    return {**known, "problem": "", **_numbers(planned)}


def _numbers(planned: Plan) -> Row:
    forecast, at_end = planned.forecast, planned.epsilon_by_model
    return {
        "rounds": planned.num_rounds,
        "limiting_factor": LIMITING_FACTORS[forecast.regime],
        "effective_noise": float(forecast.effective_noise),
        "convergence_gap": float(planned.convergence_gap),
        "uplink_seconds": float(planned.uplink_seconds),
        "joules": float(planned.uplink_joules),
        "epsilon_target_most": float(planned.fleet.epsilon.max()),
        **{f"epsilon_{model}": float(values.max()) for model, values in at_end.items()},
    }
