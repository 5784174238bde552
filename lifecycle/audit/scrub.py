"""Resident pages hashed again, from a log and the host memory of its rank; `coordinator.scrub()` does it on a live one."""

from lifecycle.runtime.scrub import Overwritten, Scrubbed, scrub

__all__ = ["Overwritten", "Scrubbed", "scrub"]
