"""What SGLang does otherwise by design, under names: kept by the audit, which sets it apart in logs of SGLang's."""

from lifecycle.audit.known import known_difference

__all__ = ["known_difference"]
