"""One thread that does things in the order in which they are handed over, so that the one who hands them over goes on.

Handing over and waiting cost a lock each: about 20 us after an idle stretch, where beginning a collective costs 200.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class _Turn:
    """One thing to do, and whether it is done."""

    __slots__ = ("call", "done", "error")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.done = threading.Lock()  # held until it is done: cheaper to wait for than an event
        self.done.acquire()
        self.error: RuntimeError | None = None


class Lane:
    """Runs calls one by one on a daemon thread. Once one has failed, all later ones fail with it."""

    def __init__(self, name: str) -> None:
        self._turns: SimpleQueue[_Turn | None] = SimpleQueue()
        self._broken: RuntimeError | None = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, call: Callable[[], None], patience_s: float) -> Callable[[], None]:
        """Hand a call over; the returned function waits for its end, up to `patience_s`, and raises its `RuntimeError`."""
        turn = _Turn(call)
        self._turns.put(turn)

        def wait() -> None:
            if not turn.done.acquire(timeout=patience_s):
                raise RuntimeError(f"the exchange took longer than {patience_s} s")
            if turn.error is not None:
                raise turn.error

        return wait

    def close(self) -> None:
        """Stop after what was handed over so far; waits for nothing."""
        self._turns.put(None)

    def _work(self) -> None:
        while (turn := self._turns.get()) is not None:
            if self._broken is None:
                try:
                    turn.call()
                except RuntimeError as error:
                    self._broken = error
                except Exception as error:  # whoever waits must hear of it
                    self._broken = RuntimeError(repr(error))
            turn.error = self._broken
            turn.done.release()
