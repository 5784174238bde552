"""What one simulated run is made of, drawn from its seed: layout, ranks, policies, sizes. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from lifecycle.keys import KeyChain, page_keys
from lifecycle.layout import KV, Layout, Need, Pool, TrailingPages, deepseek_v4, dsa, kv_only, mamba, swa
from lifecycle.policies import BestEffort, OnShortfall, Policies, Pressure, Retry, StopPolicy, Timeout, WaitComplete

PAGE_TOKENS = 4
PROMPT_PAGES = 10
PROMPTS = 24


def mixed() -> Layout:
    """Return a layout with one sidecar of each kind: riding, rebuildable, required and optional with slots of its own."""
    return Layout(
        "mixed",
        (
            Pool(KV),
            Pool("indexer", rides_on=KV),
            Pool("swa", TrailingPages(2), need=Need.REBUILDABLE),
            Pool("mamba", TrailingPages(1)),
            Pool("draft", need=Need.OPTIONAL),
            Pool("draft_indexer", rides_on="draft", need=Need.OPTIONAL),
        ),
    )


LAYOUTS: Mapping[str, Layout] = {
    "kv_only": kv_only(),
    "dsa": dsa(),
    "dsa_draft": dsa(draft=True),
    "swa": swa(2),
    "mamba": mamba(),
    "deepseek_v4": deepseek_v4(2, draft=True),
    "mixed": mixed(),
}
_SHARE = ("kv_only", "kv_only", "dsa", "dsa", "dsa_draft", "swa", "swa", "mamba", "deepseek_v4", "mixed")


def _prompts() -> tuple[KeyChain, ...]:
    """Return prompts that share beginnings: six families, each with four prompts that part at pages 0, 2, 5 and 8."""
    out = []
    for number in range(PROMPTS):
        family, parting = divmod(number, 4)
        shared = PAGE_TOKENS * (0, 2, 5, 8)[parting]
        places = range(PROMPT_PAGES * PAGE_TOKENS)
        tokens = [(family * 1000 if place < shared else number * 10_000) + place for place in places]
        out.append(page_keys(tokens, PAGE_TOKENS))
    return tuple(out)


KEYS = _prompts()


@cache
def chain(prompt: int, pages: int) -> KeyChain:
    """Return the keys of the first pages of a prompt."""
    return KeyChain(KEYS[prompt][:pages])


@dataclass(frozen=True, slots=True)
class Setup:
    """The configuration of one run; `capacity_pages` and `readers` are per rank."""

    seed: int
    layout: Layout
    ranks: int
    policies: Policies
    capacity_pages: tuple[Mapping[str, int], ...]
    readers: tuple[int, ...]
    force_round: bool
    fault_rate: float

    def text(self) -> str:
        """Return the setup in one line."""
        policies = self.policies
        return (
            f"{self.layout.name}, {self.ranks} ranks, lag {policies.lag_ticks}, {policies.stop.name}, {policies.pressure},"
            f" {policies.shortfall}, capacity {[dict(c) for c in self.capacity_pages]}, readers {list(self.readers)},"
            f" limit {policies.limit_tokens} tokens, threshold {policies.threshold_pages}, batch {policies.batch_pages},"
            f" {policies.retry or 'no retries'}"
        )


def draw(
    seed: int, layout: str | None = None, ranks: int | None = None, lag: int | None = None, fault_rate: float = 0.2
) -> Setup:
    """Return the setup of a seed; what is given is taken, the rest drawn."""
    dice = Random(f"setup/{seed}")
    chosen = LAYOUTS[dice.choice(_SHARE)]
    drawn_ranks = dice.choice((1, 1, 2, 2, 2, 3, 4))
    drawn_lag = dice.choice((0, 0, 1, 1, 2))
    chosen = chosen if layout is None else LAYOUTS[layout]
    ranks = drawn_ranks if ranks is None else ranks
    retry, limit_pages = _retry(seed), dice.choice((12, 100, 300, 300, 300, 300))
    policies = Policies(
        retry=retry,
        stop=_stop(dice),
        pressure=dice.choice((Pressure.SHRINK, Pressure.SHRINK, Pressure.REVOKE)),
        shortfall=dice.choice((OnShortfall.DISCARD, OnShortfall.DEGRADE)),
        threshold_pages=dice.choice((1, 1, 2, 3)),
        max_pages=dice.choice((5, 8, 16)),
        limit_tokens=(limit_pages if retry is None else min(limit_pages, _room(seed))) * PAGE_TOKENS,
        lost_read_s=dice.choice((0.2, 0.5)),
        max_lost_reads=dice.choice((1, 8, 50, 50)),
        row_capacity=dice.choice((2, 4, 16)),
        mask_capacity=dice.choice((1, 3)),
        lag_ticks=drawn_lag if lag is None else lag,
        batch_pages=dice.choice((1, 2, 4, 128)),
        stuck_after_tries=dice.choice((1, 3)),
    )
    own = [pool.name for pool in chosen.own]
    base = {name: dice.choice((10, 40, 100, 160)) if name == KV else dice.choice((4, 16, 40, 60)) for name in own}
    capacity = tuple({name: pages + dice.choice((0, 0, 1)) for name, pages in base.items()} for _ in range(ranks))
    readers = tuple(dice.choice((1, 2, 3, 4, 4)) for _ in range(ranks))
    return Setup(seed, chosen, ranks, policies, capacity, readers, ranks == 1 and dice.random() < 0.3, fault_rate)


def _retry(seed: int) -> Retry | None:
    """Return how it is tried again: in two of three runs, at paces and bounds that a run reaches."""
    dice = Random(f"retry/{seed}")
    if dice.random() < 1 / 3:
        return None
    every, queries = dice.choice((1, 2, 4, 8)), dice.choice((1, 2, 3, 4))
    return Retry(every, queries, max_waiting=dice.choice((1, 3, 64)), give_up_ticks=dice.choice((1, 10, 40)))


def _room(seed: int) -> int:
    """Return a limit in pages that is reached now and then."""
    return Random(f"room/{seed}").choice((12, 20, 30, 300))


def _stop(dice: Random) -> StopPolicy:
    kind = dice.choice(("timeout", "timeout", "wait", "effort"))
    if kind == "timeout":
        return Timeout(base_s=dice.choice((0.06, 0.2)), per_ki_token_s=dice.choice((0.0, 1.0)), max_s=0.3)
    return WaitComplete() if kind == "wait" else BestEffort()
