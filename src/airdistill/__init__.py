"""AirDistill: differentially private over-the-air federated distillation.

A scenario is a preset's name, the path of a TOML file, a dictionary nested like TOML, or a `Scenario`. `plan` plans
what `run` runs: by default the scheme "airdistill"; the scheme "ota_fd" is the paper's.

>>> import airdistill as ad
>>> plan = ad.plan("quick")
>>> plan.num_rounds
60
>>> plan.scenario.learning.receiver
'tracking'
>>> ad.plan("quick", scheme="ota_fd").scenario.learning.receiver
'linear'
>>> [receiver.name for receiver in ad.what_if(plan).receivers]
['linear', 'projected', 'tracking']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
DEFAULT_SCHEME = "airdistill"

if TYPE_CHECKING:
    from airdistill.audit import Audit, AuditOptions, audit_run
    from airdistill.errors import AirDistillError
    from airdistill.planning.plan import Plan
    from airdistill.planning.what_if.steps import WhatIf, what_if
    from airdistill.privacy.certificate import Certificate
    from airdistill.privacy.ledger import BudgetExceeded
    from airdistill.runs.accounts import certify
    from airdistill.runs.comparison import ComparisonRecord, compare, sweep
    from airdistill.runs.options import RunOptions, plan
    from airdistill.runs.piloting import PilotRecord, pilot
    from airdistill.runs.planned import PlannedSweep, sweep_plans
    from airdistill.runs.record import RunRecord
    from airdistill.runs.results import RoundRecord, RunSummary
    from airdistill.runs.runner import resume, run
    from airdistill.runs.tables import load_results
    from airdistill.scenario.loading import as_scenario, load
    from airdistill.scenario.model import Scenario

__all__ = [
    "DEFAULT_SCHEME",
    "AirDistillError",
    "Audit",
    "AuditOptions",
    "BudgetExceeded",
    "Certificate",
    "ComparisonRecord",
    "PilotRecord",
    "Plan",
    "PlannedSweep",
    "RoundRecord",
    "RunOptions",
    "RunRecord",
    "RunSummary",
    "Scenario",
    "WhatIf",
    "__version__",
    "as_scenario",
    "audit_run",
    "certify",
    "compare",
    "load",
    "load_results",
    "pilot",
    "plan",
    "resume",
    "run",
    "sweep",
    "sweep_plans",
    "what_if",
]

# Modules are imported when one of their names is first used, which keeps `import airdistill` and `--help` fast.
_HOMES = {
    "AirDistillError": "airdistill.errors",
    "Audit": "airdistill.audit",
    "AuditOptions": "airdistill.audit",
    "BudgetExceeded": "airdistill.privacy.ledger",
    "Certificate": "airdistill.privacy.certificate",
    "ComparisonRecord": "airdistill.runs.comparison",
    "PilotRecord": "airdistill.runs.piloting",
    "Plan": "airdistill.planning.plan",
    "PlannedSweep": "airdistill.runs.planned",
    "RoundRecord": "airdistill.runs.results",
    "RunOptions": "airdistill.runs.options",
    "RunRecord": "airdistill.runs.record",
    "RunSummary": "airdistill.runs.results",
    "Scenario": "airdistill.scenario.model",
    "WhatIf": "airdistill.planning.what_if.steps",
    "as_scenario": "airdistill.scenario.loading",
    "audit_run": "airdistill.audit",
    "certify": "airdistill.runs.accounts",
    "compare": "airdistill.runs.comparison",
    "load": "airdistill.scenario.loading",
    "load_results": "airdistill.runs.tables",
    "pilot": "airdistill.runs.piloting",
    "plan": "airdistill.runs.options",
    "resume": "airdistill.runs.runner",
    "run": "airdistill.runs.runner",
    "sweep": "airdistill.runs.comparison",
    "sweep_plans": "airdistill.runs.planned",
    "what_if": "airdistill.planning.what_if.steps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'airdistill' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
