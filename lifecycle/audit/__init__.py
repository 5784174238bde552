"""Checking event logs after the fact: the laws of the lifecycle, kept by books of its own."""

from lifecycle.audit.laws import Law, Violation
from lifecycle.audit.verify import verify_log, verify_logs, violations

__all__ = ["Law", "Violation", "verify_log", "verify_logs", "violations"]
