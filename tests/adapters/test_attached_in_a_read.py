"""The shadow comes while a transfer thread is in the middle of a prefetch: it looks on from the next one on."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from lifecycle.adapters.hooks import Hooks
from lifecycle.adapters.sglang_threads import Threads


class Controller:
    """Transfers one operation in two reads; `between` is called between them."""

    def __init__(self, batched: bool) -> None:
        self.between: Any = lambda: None
        self.storage_backend = SimpleNamespace(batch_get_v2=lambda transfers: {})
        if batched:
            self._page_transfer_kv_batch = lambda operation, keys: self.page_get_func(operation, keys)

    def page_get_func(self, operation: Any, keys: list[str]) -> int:
        operation.completed_tokens += 4 * len(keys)
        return len(keys)

    def _storage_hit_query(self, operation: Any) -> None:
        """Find nothing."""

    def _page_transfer(self, operation: Any) -> None:
        for place in range(2):
            getattr(self, "_page_transfer_kv_batch", self.page_get_func)(operation, ["key"])
            if not place:
                self.between()
        self.storage_backend.batch_get_v2([SimpleNamespace(name="indexer")])


@pytest.mark.parametrize(("batched", "words"), [
    (False, ["reading", "read", "reading", "read", "reading sides", "read sides", "over"]),
    (True, ["reading", "read batch", "reading", "read batch", "reading sides", "read sides", "over"]),
])  # fmt: skip
def test_a_transfer_that_began_before_is_left_alone(batched: bool, words: list[str]) -> None:
    """Nothing is said of its reads, nothing fails, and everything is said of the next one."""
    controller, hooks, facts = Controller(batched), Hooks("the test"), deque[Any]()
    threads = Threads(facts, lambda: None, 4, ("kv", "indexer"))
    controller.between = lambda: threads.attach(hooks, controller)
    controller._page_transfer(SimpleNamespace(completed_tokens=0))
    assert hooks.failure is None
    assert list(facts) == []
    controller.between = lambda: None
    controller._page_transfer(SimpleNamespace(completed_tokens=0))
    assert hooks.failure is None
    assert [fact[2] for fact in facts] == words
