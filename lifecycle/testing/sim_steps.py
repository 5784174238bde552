"""The steps of a simulated run, as data: drawn from the seed, replayable, and good in any subset (for shrinking).

A step carries all that it needs; no step draws from a source that another one moved.
"""

from random import Random
from typing import NamedTuple

from lifecycle.testing.sim_setup import PROMPT_PAGES, PROMPTS, Setup

READ_FAULTS = (
    "missing", "short", "corrupt", "io_error", "lease_expired", "ack_short", "raise", "raise_late",
    "wrong_short", "wrong_long", "wrong_none", "wrong_kind",
)  # fmt: skip
QUERY_FAULTS = ("query_raise", "query_short", "query_none", "query_lacking", "phantom", "omitted")
READER_FAULTS = ("hang", "hang", "hang", "duplicate", "blind", "slow")
MEMORY_VERBS = ("release", "quarantine", "allocate")
INDEX_VERBS = ("insert", "lock", "unlock", "plan_insert", "evict")
FAULTS = frozenset(
    ("arm_read", "arm_query", "arm_reader", "lose", "port", "exhaust", "plan", "log_full", "crash", "diverge", "restart")
)
"""The verbs by which fate does harm."""


class Step(NamedTuple):
    """One thing that the engine, the readers, the clock or fate does."""

    verb: str
    args: tuple[int | str, ...] = ()

    def text(self) -> str:
        """Return the step for people."""
        return f"{self.verb}({', '.join(map(repr, self.args))})"


def generate(setup: Setup, steps: int) -> list[Step]:
    """Return `steps` steps of the setup's seed."""
    return _Generator(setup).run(steps)


class _Generator:
    """Draws sensible steps: it remembers which requests it named, never what became of them."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._dice = Random(f"steps/{setup.seed}")
        self._next = 0
        self._live: list[int] = []
        self._attempt: dict[int, int] = {}
        verbs = {
            "issue": 20, "tick": 24, "work": 24, "ready": 6, "served": 5, "take": 2, "finish": 17, "abort": 0.6, "retry": 0.6,
            "again": 0.3, "adopt": 1, "stash": 0.4, "issue_stashed": 0.4, "write": 2,
        }  # fmt: skip
        self._verbs, self._weights = list(verbs), list(verbs.values())

    def run(self, steps: int) -> list[Step]:
        dice, out = self._dice, list[Step]()
        while len(out) < steps:
            verb = dice.choices(self._verbs, self._weights)[0]
            out.append(getattr(self, f"_{verb}")())
            if verb in ("issue", "retry") and dice.random() < self._setup.fault_rate:
                out.append(self._fault())
        return out[:steps]

    def _request(self) -> int:
        return self._dice.choice(self._live[-12:]) if self._live else 0

    def _issue(self) -> Step:
        self._next += 1
        self._live.append(self._next)
        self._attempt[self._next] = 0
        pages = self._dice.choice((3, 5, 6, 7, 8, 9, PROMPT_PAGES, PROMPT_PAGES))
        return Step("issue", (self._next, 0, self._dice.randrange(PROMPTS), pages))

    def _retry(self) -> Step:
        request = self._request()
        if not request:
            return self._issue()
        self._attempt[request] += 1
        return Step("issue", (request, self._attempt[request], self._dice.randrange(PROMPTS), PROMPT_PAGES))

    def _again(self) -> Step:
        return Step("again", (self._request(),))

    def _tick(self) -> Step:
        dice = self._dice
        longest = dice.choice((2, 2, 10, 10, 30)) if dice.random() < 0.97 else dice.choice((120, 600))
        return Step("tick", tuple(dice.randrange(longest + 1) for _ in range(self._setup.ranks)))

    def _work(self) -> Step:
        dice = self._dice
        moves = dice.choice((1, 2, 4, 8, 16, 16))
        return Step("work", (moves, dice.randrange(1 << 30)))

    def _ready(self) -> Step:
        return Step("ready", (self._request(),))

    def _served(self) -> Step:
        return Step("served", (self._request(),))

    def _take(self) -> Step:
        return Step("take", (self._request(),))

    def _finish(self) -> Step:
        if len(self._live) < 9:
            return self._work()
        return Step("finish", (self._live.pop(self._dice.randrange(1 + len(self._live) // 3)),))

    def _abort(self) -> Step:
        return Step("abort", (self._request(),))

    def _adopt(self) -> Step:
        return Step("adopt", (self._dice.randrange(PROMPTS), self._dice.randrange(1, PROMPT_PAGES + 1)))

    def _stash(self) -> Step:
        return Step("stash", (self._dice.randrange(PROMPTS),))

    def _issue_stashed(self) -> Step:
        self._next += 1
        self._live.append(self._next)
        self._attempt[self._next] = 0
        return Step("issue_stashed", (self._next, self._dice.randrange(PROMPTS)))

    def _write(self) -> Step:
        return Step("write", (self._rank(), self._dice.randrange(PROMPTS)))

    def _rank(self) -> int:
        return self._dice.randrange(self._setup.ranks)

    def _fault(self) -> Step:
        dice, rank = self._dice, self._rank()
        kinds = {"read": 40, "query": 9, "reader": 20, "wake": 8, "lose": 14, "memory": 6, "exhaust": 2, "plan": 4, "abort": 3,
                 "index": 1.2, "crash": 0.8, "diverge": 0.5, "log_full": 1, "restart": 1.5, "pause": 2}  # fmt: skip
        kind = dice.choices(list(kinds), list(kinds.values()))[0]
        match kind:
            case "read":
                return Step("arm_read", (rank, dice.choice(READ_FAULTS), dice.randrange(12), dice.randrange(4)))
            case "query":
                return Step("arm_query", (rank, dice.choice(QUERY_FAULTS)))
            case "reader":
                return Step("arm_reader", (rank, dice.choice(READER_FAULTS)))
            case "wake":
                return Step("wake", (rank, dice.randrange(8)))
            case "lose":
                lo = dice.choice((0, 0, dice.randrange(PROMPT_PAGES)))
                pool = dice.choice([pool.name for pool in self._setup.layout.pools])
                hi = dice.choice((lo + 1, PROMPT_PAGES))
                return Step("lose", (rank, pool, dice.randrange(PROMPTS), lo, hi))
            case "memory":
                return Step("port", (rank, dice.choice(MEMORY_VERBS), dice.choice((1, 2, 6))))
            case "exhaust":
                return Step("exhaust", (rank,))
            case "plan":
                return Step("plan", (dice.choice(("anchor_lost", "insert_dropped")),))
            case "index":
                return Step("port", (rank, dice.choice(INDEX_VERBS), dice.choice((1, 2))))
            case "log_full":
                return Step("log_full", (rank, dice.choice((1, 5, 50))))
            case "restart":
                return Step("restart", (dice.randrange(6), dice.randrange(1 << 30)))
            case "pause":
                return Step("tick", tuple(dice.choice((0, 120, 600)) for _ in range(self._setup.ranks)))
        return Step(kind, (rank,) if kind in ("crash", "diverge") else (self._request(),))
