"""A comparison for machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from airdistill.files import jsonable
from airdistill.runs.comparison import ComparisonRecord
from airdistill.runs.results import arm_results


def comparison_to_dict(record: ComparisonRecord) -> dict[str, Any]:
    """Every arm's numbers; null is infinite, or an interval that one seed does not have."""
    written: dict[str, Any] = jsonable(
        {
            "folder": str(record.folder),
            "name": record.comparison.name,
            "seeds": record.comparison.seeds,
            "arms": [asdict(result) for result in arm_results(record)],
            "failures": [
                {"label": task.label, "seed": task.seed, "reason": reason} for task, reason in record.failures.items()
            ],
        }
    )
    return written
