"""Virtual time: a monotonic clock that moves when it is told to, and never otherwise."""

NS_PER_MS = 1_000_000


class VirtualClock:
    """Monotonic nanoseconds; pass it as `clock_ns`."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self.now_ns = start_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance_ms(self, milliseconds: int) -> None:
        """Let time pass; raises `ValueError` for less than none."""
        if milliseconds < 0:
            raise ValueError(f"cannot move a monotonic clock by {milliseconds} ms (use 0 or more)")
        self.now_ns += milliseconds * NS_PER_MS
