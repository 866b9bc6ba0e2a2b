"""The round loop, its records and its checkpoints; many runs as one comparison; and pilots."""

from airdistill.runs.accounts import certify
from airdistill.runs.comparison import ComparisonRecord, compare
from airdistill.runs.piloting import PilotRecord, pilot
from airdistill.runs.record import RunRecord
from airdistill.runs.runner import resume, run

__all__ = ["ComparisonRecord", "PilotRecord", "RunRecord", "certify", "compare", "pilot", "resume", "run"]
