"""Rigs on which requests wait to be tried again, and what their logs tell of it."""

from collections.abc import Callable
from typing import Any

from kit.rig import PAGE_TOKENS, Rig
from lifecycle import events as ev
from lifecycle.audit import verify_logs
from lifecycle.policies import Retry

RigOf = Callable[..., Rig]
EVERY, GIVE_UP = 3, 12
RETRY = Retry(every_ticks=EVERY, max_queries=3, max_waiting=4, give_up_ticks=GIVE_UP)
ROOM = 8 * PAGE_TOKENS


def waiters(rig: Rig) -> list[tuple[str, int, str]]:
    """Return who waits on every rank, in order, with the attempt and the reason."""
    return [(w["request"], w["attempt"], w["reason"]) for w in rig.same(lambda rank: rig.ranks[rank].snapshot()["waiting"])]


def story(rig: Rig, request: str) -> list[str]:
    """Return what the log says of a request's tries: issued, declined and why, and its waits."""
    told = []
    for record in rig.logs[0].records():
        match record.event:
            case ev.Issued(request=who, attempt=attempt) if who == request:
                told.append(f"issued {attempt}")
            case ev.Declined(request=who, reason=reason) if who == request:
                told.append(f"declined {reason}")
            case ev.WaitBegan(request=who, reason=reason) if who == request:
                told.append(f"waits {reason}")
            case ev.WaitEnded(request=who, reason=reason) if who == request:
                told.append(f"over {reason}" if reason else "tried")
    return told


def check(rig: Rig) -> None:
    """Check the books, that the logs fold to them, and the logs against the laws."""
    rig.check_equal()
    rig.check()
    found = verify_logs([log.records() for log in rig.logs])
    assert not found, "\n".join(map(str, found))


def served(rig: Rig, request: str) -> None:
    """Serve a request on every rank."""
    prompt = rig.prompts[request]
    rig.same(lambda rank: rig.ranks[rank].served(request, rig.indexes[rank].match(prompt, rig.ranks[rank].tick_number)))


def missing(rig: Rig, request: str, flags: str = "0" * 8) -> None:
    """Let L3 have these pages of a prompt."""
    for store in rig.stores:
        store.show("kv", flags, rig.prompt(request, 8))


def ask_in_vain(rig: Rig, request: str = "r", **more: Any) -> int:
    """Issue a request of which L3 has nothing, up to its end."""
    missing(rig, request)
    id_ = rig.issue(request, **more)
    assert isinstance(id_, int)
    rig.until_closed(id_)
    return id_


def full(rig_of: RigOf, ranks: int = 1, pages: int = 8, **more: Any) -> Rig:
    """Return ranks whose limit one prefetch, of `a`, takes up; its query is held."""
    rig = rig_of(ranks=ranks, limit_tokens=pages * PAGE_TOKENS, **{"retry": RETRY, **more})
    for store in rig.stores:
        store.hold("")
    rig.issue("a")
    return rig


def waiting_rig(rig_of: RigOf, kind: str, **more: Any) -> Rig:
    """Return ranks on which `r` waits, for room or to ask again."""
    if kind == "to ask":
        rig = rig_of(retry=RETRY, **more)
        ask_in_vain(rig)
    else:
        rig = full(rig_of, **more)
        rig.issue()
    return rig


def is_over(rig: Rig) -> None:
    """Nothing waits, nothing of it is kept, and nothing comes of it."""
    assert not waiters(rig)
    assert all(not sizes["waiting_keys"] for sizes in rig.sizes())
    check(rig)
    for store in rig.stores:
        store.open_all()
    rig.until(lambda: not any(c.book.local for c in rig.ranks))
    rig.tick(2 * EVERY)
