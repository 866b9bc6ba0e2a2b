"""Privacy audit: attacks on what the server receives, compared with the certified guarantee."""

from airdistill.audit.auditing import Audit, audit, audit_run
from airdistill.audit.options import AuditOptions

__all__ = ["Audit", "AuditOptions", "audit", "audit_run"]
