"""The plan of a prefetch: it follows from the hit, the layout and the budgets, and is only ever capped."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.audit.account import Account
from lifecycle.audit.facts import LeftOut
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger, text
from lifecycle.audit.moves import step
from lifecycle.audit.stops import check_cut, check_hit, check_promises, hole, is_known_to_fail
from lifecycle.events import Capped, Event, HitResolved, PlanAgreed
from lifecycle.layout import TrailingPages
from lifecycle.policies import Pressure
from lifecycle.ranges import Range
from lifecycle.reasons import Reason
from lifecycle.states import State
from lifecycle.table import Trigger


def _resolved(ledger: Ledger, account: Account, seq: int, event: HitResolved) -> None:
    ledger.once(account, seq, event, Law.LEGAL)
    if account.state is not State.ISSUED:
        ledger.say(Law.LATE, f"HitResolved while it is {account.state}", "dropped after ISSUED", (seq,), account)
    if not account.start_page <= event.hit_page <= account.end_page:
        right = f"{account.start_page} to {account.end_page}"
        ledger.say(Law.PLAN, f"a hit up to page {event.hit_page}", right, (seq,), account)
    account.hit_page, account.hit_ns, account.leading = event.hit_page, ledger.now(), event.leading
    check_hit(ledger, account, seq, event)


def _planned(ledger: Ledger, account: Account, seq: int, event: PlanAgreed) -> None:
    if not step(ledger, account, seq, event, Trigger.PLAN, State.TRANSFERRING):
        return
    _check_lengths(ledger, account, seq, event)
    if ledger.promised:
        check_promises(ledger, account, seq)
    account.plan_page = account.ceiling_page = max(account.start_page, min(event.plan_page, account.end_page))
    account.left_out = event.left_out
    left_out: list[str] = []
    reserved: dict[str, Range] = {}
    for group in ledger.layout.groups:
        owner = group[0]
        if owner.name in event.left_out and owner not in ledger.required:
            left_out += [pool.name for pool in group]
        else:
            reserved[owner.name] = owner.window(account.start_page, event.plan_page)
    if event.reserved != reserved or list(event.left_out) != left_out:
        what = f"{_pages(event.reserved)} reserved, {', '.join(event.left_out) or 'nothing'} left out"
        right = f"{_pages(reserved)}, {', '.join(left_out) or 'nothing'} left out"
        fact = _left_out(ledger, account, event, reserved)
        ledger.say(Law.PLAN, what, right, (seq,), account, fact=fact)
    account.reserved = {pool: pages for pool, pages in event.reserved.items() if pool in ledger.own_set}
    for pool, (lo, hi) in account.reserved.items():
        ledger.reserved_pages[pool] += hi - lo
        ledger.check_promise(pool, seq, account)


def _left_out(ledger: Ledger, account: Account, event: PlanAgreed, reserved: Mapping[str, Range]) -> LeftOut | None:
    """Return what is left out of a plan against the rule, if that is all that is wrong with it."""
    kept = {pool: pages for pool, pages in reserved.items() if pool not in event.left_out}
    names = tuple(pool.name for group in ledger.layout.groups if group[0].name not in kept for pool in group)
    if event.reserved != kept or event.left_out != names:
        return None
    coverages = [ledger.layout.pool(pool).coverage for pool in reserved if pool not in kept]
    windows = [each.window_pages if isinstance(each, TrailingPages) else 0 for each in coverages]
    return LeftOut(account.end_page - account.start_page, min(windows))


def _check_lengths(ledger: Ledger, account: Account, seq: int, event: PlanAgreed) -> None:
    terms = ledger.terms

    def say(what: str, right: str) -> None:
        ledger.say(Law.PLAN, what, right, (seq,), account)

    if account.hit_page is None:
        say("a plan was made before this rank's shard was asked", "after HitResolved")
    elif event.hit_page > account.hit_page:
        say(f"an agreed hit up to page {event.hit_page}", f"at most {account.hit_page}, this rank's own")
    least = account.start_page + max(1, terms.threshold_pages)
    if not least <= event.plan_page <= event.hit_page <= account.end_page:
        right = f"{least} <= plan <= hit <= {account.end_page}"
        say(f"a plan up to page {event.plan_page} of a hit up to {event.hit_page}", right)
    short = event.plan_page < event.hit_page
    if event.cut is not (Reason.HOST_CAPACITY if short else None):
        say(f"the plan is cut by {event.cut}", f"{Reason.HOST_CAPACITY if short else None}")
    if ledger.windows:
        for length, page in (("an agreed hit", event.hit_page), ("a plan", event.plan_page)):
            if (missing := hole(ledger, account, page)) is not None:
                say(f"{length} up to page {page}", f"another: this rank has no page {missing[1]} of {missing[0]}")
                break
    if short:
        check_cut(ledger, account, seq, event)
    if short and terms.pressure is Pressure.REVOKE:
        say("the plan is shorter than the hit", f"the hit or nothing under {Pressure.REVOKE}")


def _pages(pages: Mapping[str, Range]) -> str:
    return ", ".join(f"{pool} {text(each)}" for pool, each in pages.items()) or "nothing"


def _capped(ledger: Ledger, account: Account, seq: int, event: Capped) -> None:
    account.marks[Capped] = seq
    if account.state is not State.TRANSFERRING:
        ledger.say(Law.LEGAL, f"Capped while it is {account.state}", f"while it is {State.TRANSFERRING}", (seq,), account)
        return
    if not account.start_page <= event.ceiling_page < account.ceiling_page:
        right = f"below {account.ceiling_page}, not below {account.start_page}"
        ledger.say(Law.PLAN, f"capped to page {event.ceiling_page}", right, (seq,), account)
    if ledger.terms.ranks == 1 and ledger.terms.stop is not None and not is_known_to_fail(ledger, account, event.ceiling_page):
        ledger.say(Law.PLAN, f"capped to page {event.ceiling_page}", "to a page that failed", (seq,), account)
    account.ceiling_page = min(account.ceiling_page, event.ceiling_page)
    account.withdrawn = seq


HANDLERS: Mapping[type[Event], Callable[[Ledger, Account, int, Any], None]] = {
    HitResolved: _resolved,
    PlanAgreed: _planned,
    Capped: _capped,
}
