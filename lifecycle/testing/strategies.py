"""Hypothesis strategies: legal layouts, policies, reports of a rank, and plans of what goes wrong. Needs hypothesis."""

from hypothesis import strategies as st

from lifecycle.layout import KV, AllPages, Layout, Need, Pool, TrailingPages
from lifecycle.policies import BestEffort, OnShortfall, Policies, Pressure, Timeout, WaitComplete
from lifecycle.reasons import Reason
from lifecycle.rows import NEUTRAL, Report
from lifecycle.testing.scripted_store import BATCHES, CODES

_NEEDS = (Need.REQUIRED, Need.REBUILDABLE, Need.OPTIONAL)


@st.composite
def layouts(draw: st.DrawFn, most_sidecars: int = 4, most_window_pages: int = 4) -> Layout:
    """Draw a legal layout: kv and up to `most_sidecars` others, riding or with slots of their own."""
    pools = [Pool(KV)]
    for number in range(draw(st.integers(0, most_sidecars))):
        host = draw(st.sampled_from([None, *(pool for pool in pools if pool.rides_on is None)]))
        most = most_window_pages
        trailing = draw(st.booleans())
        if host is not None and isinstance(host.coverage, TrailingPages):
            trailing, most = True, host.coverage.window_pages
        needs = _NEEDS if host is None else _NEEDS[_NEEDS.index(host.need) :]
        coverage = TrailingPages(draw(st.integers(1, most))) if trailing else AllPages()
        rides_on = None if host is None else host.name
        pools.append(Pool(f"pool{number}", coverage, rides_on, draw(st.sampled_from(needs))))
    return Layout("drawn", tuple(pools))


def policies(lag_ticks: int | None = None) -> st.SearchStrategy[Policies]:
    """Draw policies with small limits."""
    return st.builds(
        Policies,
        stop=st.sampled_from((BestEffort(), WaitComplete(), Timeout(0.05, 0.0, 0.1))),
        pressure=st.sampled_from(tuple(Pressure)),
        shortfall=st.sampled_from(tuple(OnShortfall)),
        threshold_pages=st.integers(1, 3),
        max_pages=st.integers(4, 16),
        limit_tokens=st.sampled_from((64, 256, 1024)),
        lost_read_s=st.sampled_from((0.2, 1.0)),
        max_lost_reads=st.integers(0, 4),
        row_capacity=st.integers(1, 8),
        mask_capacity=st.integers(1, 4),
        lag_ticks=st.integers(0, 2) if lag_ticks is None else st.just(lag_ticks),
        batch_pages=st.integers(1, 8),
    )


@st.composite
def reports(draw: st.DrawFn, layout: Layout, end_page: int = 8) -> Report:
    """Draw what a rank may say of a prefetch of [0, end_page)."""
    pages = st.integers(0, end_page)
    must = draw(st.booleans())
    reason = draw(st.sampled_from(tuple(Reason))).code if must else NEUTRAL
    final = draw(st.booleans())
    landed = tuple(draw(pages) for _ in layout.pools)
    hit_page, can_stop = draw(st.integers(-1, end_page)), final or draw(st.booleans())
    return Report(hit_page, draw(pages), can_stop, must, final, False, reason, landed)


def answers(pages: int) -> st.SearchStrategy[str]:
    """Draw the answers of reads for `ScriptedStore.say`: most are whole."""
    return st.text(st.sampled_from(("1", "1", "1", "1", *CODES, "a")), min_size=pages, max_size=pages)


@st.composite
def fault_plans(draw: st.DrawFn, layout: Layout, pages: int, ranks: int = 1) -> list[dict[str, tuple[str, str, str]]]:
    """Draw, per rank and pool, (answers to reads, hints, what becomes of batches) for `ScriptedStore`."""
    hints = st.text(st.sampled_from("1110"), min_size=pages, max_size=pages)
    batches = st.sampled_from(("", "", "", "", *BATCHES))
    return [{pool.name: (draw(answers(pages)), draw(hints), draw(batches)) for pool in layout.pools} for _ in range(ranks)]
