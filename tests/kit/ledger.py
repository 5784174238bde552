"""The laws of one rank's log, counted beside the library: each effect once, each page in one part. Shares no code with it."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from lifecycle import events as ev

PUBLISHED = (ev.Committed, ev.Clamped)
OUTCOMES = (*PUBLISHED, ev.Discarded)


def pages_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return every page of some ranges."""
    return [page for lo, hi in ranges for page in range(lo, hi)]


def faults(events: Iterable[ev.Event], ended: bool = True) -> list[str]:
    """Return what a log did more than once, or, when it has ended, not at all."""
    by_prefetch: dict[int, list[ev.Event]] = defaultdict(list)
    for event in events:
        if (id_ := getattr(event, "prefetch", None)) is not None:
            by_prefetch[id_].append(event)
    return [f"prefetch {id_}: {fault}" for id_, log in by_prefetch.items() for fault in _faults(log, ended)]


def _faults(log: list[ev.Event], ended: bool) -> list[str]:
    count = Counter(type(event).__name__ for event in log)
    published = any(isinstance(event, PUBLISHED) for event in log)
    out = []

    def at(name: str, want: int) -> None:
        if count[name] > want or (ended and count[name] != want):
            out.append(f"{name} came {count[name]} times, not {want}")

    for name in ("Issued", "TokensReturned", "AnchorUnlocked", "Settled", "Closed"):
        at(name, 1)
    for name in ("TokensCredited", "PagesUnlocked"):
        at(name, int(published))
    outcomes = sum(isinstance(event, OUTCOMES) for event in log)
    if outcomes > 1 or (ended and outcomes != 1):
        out.append(f"it ended {outcomes} times")
    reserved = next(event.reserved_tokens for event in log if isinstance(event, ev.Issued))
    returned = [event.tokens for event in log if isinstance(event, ev.TokensReturned)]
    out += [f"{tokens} tokens returned of {reserved}" for tokens in returned if tokens != reserved]
    return out + _page_faults(log, ended) + _order_faults(log)


def _page_faults(log: list[ev.Event], ended: bool) -> list[str]:
    held: dict[str, Counter[int]] = defaultdict(Counter)
    gone: dict[str, Counter[int]] = defaultdict(Counter)
    landed: dict[str, set[int]] = defaultdict(set)
    out = []
    for event in log:
        match event:
            case ev.HostReserved(pool=pool, pages=pages):
                held[pool].update(pages_of([pages]))
            case ev.PagesLanded(pool=pool, pages=pages):
                landed[pool].update(pages_of([pages]))
            case ev.HostHandedOver(pool=pool, pages=ranges):
                gone[pool].update(pages_of(ranges))
                if stray := set(pages_of(ranges)) - landed[pool]:
                    out.append(f"pages {sorted(stray)} of {pool} were published and never landed")
            case ev.HostReleased(pool=pool, pages=ranges) | ev.HostQuarantined(pool=pool, pages=ranges):
                gone[pool].update(pages_of(ranges))
    for pool, pages in gone.items():
        if more := pages - held[pool]:
            out.append(f"pages {sorted(more)} of {pool} were given back twice, or never held")
    for pool, pages in held.items():
        if ended and (kept := pages - gone[pool]):
            out.append(f"pages {sorted(kept)} of {pool} were never given back")
    return out


def _order_faults(log: list[ev.Event]) -> list[str]:
    """A release waits for the reads that may write the page; nothing is published after a discard."""
    out, busy, done = [], defaultdict(set), False
    for event in log:
        match event:
            case ev.ReadClaimed(pool=pool, pages=pages):
                busy[pool] |= set(pages_of([pages]))
            case ev.ReadEnded(pool=pool, pages=pages):
                busy[pool] -= set(pages_of([pages]))
            case ev.HostReleased(pool=pool, pages=ranges) if busy[pool] & set(pages_of(ranges)):
                out.append(f"pages {ranges} of {pool} were released under a claimed read")
            case ev.Discarded():
                done = True
            case ev.HostHandedOver() | ev.TokensCredited() if done:
                out.append(f"{type(event).__name__} after the discard")
            case ev.AnchorUnlocked() if not any(isinstance(e, OUTCOMES) for e in log[: log.index(event)]):
                out.append("the anchor was unlocked before the outcome")
    return out
