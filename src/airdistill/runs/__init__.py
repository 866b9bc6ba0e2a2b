"""The round loop, its records and its checkpoints; and many runs as one comparison."""

from airdistill.runs.accounts import certify
from airdistill.runs.comparison import ComparisonRecord, compare
from airdistill.runs.record import RunRecord
from airdistill.runs.runner import resume, run

__all__ = ["ComparisonRecord", "RunRecord", "certify", "compare", "resume", "run"]
