"""The lifecycle in an engine: the coordinator, and the ports that an engine fills."""

from lifecycle.runtime.coordinator import Coordinator
from lifecycle.runtime.ports import EventLog, HostMemory, PageResult, PageStore, PrefixIndex
from lifecycle.runtime.sockets import HostTransport
from lifecycle.runtime.transport import Alone, TorchTransport, Transport

__all__ = [
    "Alone",
    "Coordinator",
    "EventLog",
    "HostMemory",
    "HostTransport",
    "PageResult",
    "PageStore",
    "PrefixIndex",
    "TorchTransport",
    "Transport",
]
