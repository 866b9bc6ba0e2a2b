"""AirDistill: differentially private over-the-air federated distillation.

>>> import airdistill as ad
>>> plan = ad.plan(ad.load("quick"))
>>> plan.num_rounds
60
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
DEFAULT_SCHEME = "airdistill"

if TYPE_CHECKING:
    from airdistill.codesign.plan import Plan, plan
    from airdistill.errors import AirDistillError
    from airdistill.privacy.certificate import Certificate
    from airdistill.privacy.ledger import BudgetExceeded
    from airdistill.runs import ComparisonRecord, PilotRecord, RunRecord, certify, compare, pilot, resume, run
    from airdistill.scenario import Scenario, load

__all__ = [
    "AirDistillError",
    "BudgetExceeded",
    "Certificate",
    "ComparisonRecord",
    "PilotRecord",
    "Plan",
    "RunRecord",
    "Scenario",
    "certify",
    "compare",
    "load",
    "pilot",
    "plan",
    "resume",
    "run",
]

# Names are looked up when first used, so that `import airdistill` and `airdistill --help` stay light.
_HOMES = {
    "AirDistillError": "airdistill.errors",
    "BudgetExceeded": "airdistill.privacy.ledger",
    "Certificate": "airdistill.privacy.certificate",
    "ComparisonRecord": "airdistill.runs.comparison",
    "PilotRecord": "airdistill.runs.piloting",
    "Plan": "airdistill.codesign.plan",
    "RunRecord": "airdistill.runs.record",
    "Scenario": "airdistill.scenario",
    "certify": "airdistill.runs.accounts",
    "compare": "airdistill.runs.comparison",
    "load": "airdistill.scenario",
    "pilot": "airdistill.runs.piloting",
    "plan": "airdistill.codesign.plan",
    "resume": "airdistill.runs.runner",
    "run": "airdistill.runs.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'airdistill' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
