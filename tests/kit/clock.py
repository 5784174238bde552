"""A clock that moves when told."""


class Clock:
    """Monotonic nanoseconds; read by reader threads, moved by the test alone."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def __call__(self) -> int:
        return self.ns

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.ns += int(seconds * 1e9)
