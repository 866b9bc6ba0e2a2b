"""Attacks on what the server sees, measured against what the certificate promises."""

from airdistill.audit.auditing import Audit, audit, audit_run
from airdistill.audit.options import AuditOptions

__all__ = ["Audit", "AuditOptions", "audit", "audit_run"]
