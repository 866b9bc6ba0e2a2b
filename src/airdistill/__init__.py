"""AirDistill: differentially private over-the-air federated distillation.

>>> import airdistill as ad
>>> plan = ad.plan(ad.load("quick"))
>>> plan.num_rounds
60
>>> [receiver.name for receiver in ad.what_if(plan).receivers]
['linear', 'projected', 'tracking']
>>> ad.plan_run(ad.load("quick"), rounds=16).scenario.learning.receiver
'tracking'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
DEFAULT_SCHEME = "airdistill"

if TYPE_CHECKING:
    from airdistill.audit import Audit, AuditOptions, audit_run
    from airdistill.errors import AirDistillError
    from airdistill.planning.plan import Plan, plan
    from airdistill.planning.what_if.steps import WhatIf, what_if
    from airdistill.privacy.certificate import Certificate
    from airdistill.privacy.ledger import BudgetExceeded
    from airdistill.runs import ComparisonRecord, PilotRecord, RunRecord, certify, compare, pilot, resume, run
    from airdistill.runs.options import RunOptions
    from airdistill.scenario import Scenario, load
    from airdistill.schemes import plan_run

__all__ = [
    "AirDistillError",
    "Audit",
    "AuditOptions",
    "BudgetExceeded",
    "Certificate",
    "ComparisonRecord",
    "PilotRecord",
    "Plan",
    "RunOptions",
    "RunRecord",
    "Scenario",
    "WhatIf",
    "audit_run",
    "certify",
    "compare",
    "load",
    "pilot",
    "plan",
    "plan_run",
    "resume",
    "run",
    "what_if",
]

# Names are looked up when first used, so that `import airdistill` and `airdistill --help` stay light.
_HOMES = {
    "AirDistillError": "airdistill.errors",
    "Audit": "airdistill.audit",
    "AuditOptions": "airdistill.audit",
    "BudgetExceeded": "airdistill.privacy.ledger",
    "Certificate": "airdistill.privacy.certificate",
    "ComparisonRecord": "airdistill.runs.comparison",
    "WhatIf": "airdistill.planning.what_if.steps",
    "PilotRecord": "airdistill.runs.piloting",
    "Plan": "airdistill.planning.plan",
    "RunOptions": "airdistill.runs.options",
    "RunRecord": "airdistill.runs.record",
    "Scenario": "airdistill.scenario",
    "audit_run": "airdistill.audit",
    "certify": "airdistill.runs.accounts",
    "compare": "airdistill.runs.comparison",
    "load": "airdistill.scenario",
    "what_if": "airdistill.planning.what_if.steps",
    "pilot": "airdistill.runs.piloting",
    "plan": "airdistill.planning.plan",
    "plan_run": "airdistill.schemes.registry",
    "resume": "airdistill.runs.runner",
    "run": "airdistill.runs.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'airdistill' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
