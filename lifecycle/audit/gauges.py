"""Numbers over a long run in little memory: a histogram with a bounded error, a curve of bounded length. Knows no event."""

from collections import Counter
from math import exp2, log2

_PER_OCTAVE = 16  # a value is known to within 1/16 of a power of two: 4.5 %
_POINTS = 512


class Histogram:
    """Counts of values of at least 0, by size."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.most = 0
        self._buckets: Counter[int] = Counter()

    def add(self, value: int) -> None:
        """Count a value."""
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        self._buckets[int(log2(value) * _PER_OCTAVE) if value >= 1 else -1] += 1

    def percentile(self, share: float) -> float | None:
        """Return the value that `share` of all do not exceed, to within 4.5 %; None without any."""
        if not self.count:
            return None
        left = share * self.count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return 0.0 if bucket < 0 else min(float(self.most), exp2((bucket + 1) / _PER_OCTAVE))
        return float(self.most)

    def summary(self) -> dict[str, float | None]:
        """Return count, median, tail and the greatest."""
        return {
            "count": self.count,
            "p50": self.percentile(0.5),
            "p90": self.percentile(0.9),
            "p99": self.percentile(0.99),
            "max": self.most if self.count else None,
        }


class Curve:
    """A value over time, as the greatest in each of at most 512 stretches; they double as the run grows."""

    def __init__(self, start_ns: int = 0) -> None:
        self.start_ns = start_ns
        self.stretch_ns = 1_000_000
        self.peak = 0
        self.last = 0
        self._most: list[int] = []

    def add(self, at_ns: int, value: int) -> None:
        """Note a value from `at_ns` on (times that go back count as the last one)."""
        place = max(0, at_ns - self.start_ns) // self.stretch_ns
        while place >= _POINTS:
            self._most = [max(self._most[at : at + 2]) for at in range(0, len(self._most), 2)]
            self.stretch_ns *= 2
            place = max(0, at_ns - self.start_ns) // self.stretch_ns
        place = max(place, len(self._most) - 1)
        self._most += [self.last] * (place + 1 - len(self._most))
        self._most[place] = max(self._most[place], value)
        self.peak, self.last = max(self.peak, value), value

    def points(self) -> list[tuple[int, int]]:
        """Return (ns since the start, greatest value) for each stretch."""
        return [(place * self.stretch_ns, value) for place, value in enumerate(self._most)]

    def spark(self, width: int = 60) -> str:
        """Return the curve in one line of blocks."""
        if not self._most or not self.peak:
            return ""
        step = max(1, -(-len(self._most) // width))
        peaks = [max(self._most[at : at + step]) for at in range(0, len(self._most), step)]
        return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * max(0, value) // self.peak)] for value in peaks)
