"""The round loop, its records and its checkpoints."""

from airdistill.run.record import RunRecord
from airdistill.run.runner import resume, run

__all__ = ["RunRecord", "resume", "run"]
