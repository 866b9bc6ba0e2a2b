"""The round loop, its records and its checkpoints."""

from airdistill.runs.record import RunRecord
from airdistill.runs.runner import resume, run

__all__ = ["RunRecord", "resume", "run"]
