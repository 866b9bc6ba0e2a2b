"""Attacks on what the server sees, measured against what the certificate promises."""

from airdistill.audit.auditing import Audit, audit
from airdistill.audit.options import AuditOptions
from airdistill.audit.subject import audit_run

__all__ = ["Audit", "AuditOptions", "audit", "audit_run"]
