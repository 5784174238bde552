"""Who writes down what was seen of SGLang: facts are left by any thread in a queue, and told later, off the scheduler's thread.

A fact is a tuple: what tells it, when it was, and what it was, copied then. They are told in the order in which they were left.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lifecycle.adapters.hooks import Hooks

Fact = tuple[Any, ...]

MOST_WAITING = 1_000_000
"""Facts that may wait: some tens of thousands of prefetches. Beyond it whoever tells them has fallen behind for good."""

EVERY_S = 0.02
"""How often what waits is told. Facts are told in small lots, so that nobody waits long for the interpreter."""

LOT = 32


class FellBehind(Exception):
    """Raised when facts come in faster than they can be told."""


class Scribe:
    """Tells facts: on a thread of its own, or, `at_once`, when it is asked to on the thread that left them.

    `told` is called with the time of each fact before it is told, `lot` after each lot. What goes wrong takes the hooks off;
    then nothing more is told. The thread ends with the hooks.
    """

    def __init__(self, told: Callable[[int], None], lot: Callable[[], None], hooks: Hooks, at_once: bool) -> None:
        self.facts: deque[Fact] = deque()
        self._told, self._lot, self._hooks = told, lot, hooks
        self._lock = threading.Lock()  # of those who tell; whoever leaves a fact takes none
        self._over = threading.Event()
        self._broken = False
        self._thread: threading.Thread | None = None
        if not at_once:
            self._thread = threading.Thread(target=self._run, name="sglang-shadow", daemon=True)
            self._thread.start()

    def tell(self) -> None:
        """Tell what waits now, on this thread."""
        facts = self.facts
        while facts:
            fact = facts.popleft()
            self._told(fact[1])
            fact[0](*fact[2:])

    def catch_up(self) -> None:
        """Tell what waits now, and flush; what goes wrong is reported and raised no further."""
        with self._lock:
            self._some(len(self.facts))

    def _some(self, count: int) -> None:
        if self._broken:
            self.facts.clear()
            return
        facts = self.facts
        try:
            if len(facts) > MOST_WAITING:
                raise FellBehind(f"{len(facts)} facts wait to be told, at most {MOST_WAITING} may")
            for _ in range(min(count, len(facts))):
                fact = facts.popleft()
                self._told(fact[1])
                fact[0](*fact[2:])
            self._lot()
        except Exception as error:  # whatever it is, it must not end in the engine
            self._broken = True
            facts.clear()
            self._hooks.fail(error)

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            while self.facts and not self._over.is_set():
                with self._lock:
                    self._some(LOT)
                time.sleep(0)  # whoever waits for the interpreter may go first
            if not self._hooks.live:
                return

    def stop(self, timeout_s: float) -> bool:
        """End the thread, then tell what is left on this one; return whether the thread ended in time."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        self.catch_up()
        return True
