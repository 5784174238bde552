"""The test kit: ledgers for your own pools, locks and budgets, scripted stores, readers moved by hand, and virtual time."""

from lifecycle.testing.clock import VirtualClock
from lifecycle.testing.hand_readers import HandReaders
from lifecycle.testing.ledger import Ledger, LedgerError
from lifecycle.testing.ledger_ports import LedgerIndex, LedgerLog, LedgerMemory, TokenBudget
from lifecycle.testing.scripted_store import ScriptedStore

__all__ = [
    "HandReaders",
    "Ledger",
    "LedgerError",
    "LedgerIndex",
    "LedgerLog",
    "LedgerMemory",
    "ScriptedStore",
    "TokenBudget",
    "VirtualClock",
]
