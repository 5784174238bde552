"""The lifecycle of KV-cache prefetches: states, events, rules, obligations. Pure: no file, no clock, no thread, no device."""

from lifecycle.book import Book, fold
from lifecycle.errors import LifecycleError
from lifecycle.events import Declined, Record
from lifecycle.keys import KeyChain, Namespace, page_keys
from lifecycle.layout import (
    AllPages,
    Layout,
    Need,
    Pool,
    TrailingPages,
    deepseek_v4,
    dsa,
    kv_only,
    mamba,
    preset,
    swa,
)
from lifecycle.policies import BestEffort, OnShortfall, Policies, Pressure, Retry, Timeout, WaitComplete
from lifecycle.reasons import ReadCode, Reason
from lifecycle.states import State

__all__ = [
    "AllPages",
    "BestEffort",
    "Book",
    "Declined",
    "KeyChain",
    "Layout",
    "LifecycleError",
    "Namespace",
    "Need",
    "OnShortfall",
    "Policies",
    "Pool",
    "Pressure",
    "ReadCode",
    "Reason",
    "Record",
    "Retry",
    "State",
    "Timeout",
    "TrailingPages",
    "WaitComplete",
    "deepseek_v4",
    "dsa",
    "fold",
    "kv_only",
    "mamba",
    "page_keys",
    "preset",
    "swa",
]
