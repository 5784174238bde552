"""Why a prefetch stopped, and why it never began: the reason follows from the policy, the time and what is logged.

Where ranks differ, the reason declared first wins, so that a rank alone can only be held to what it proposed itself. Of an
engine that is only observed none of this is known.
"""

from lifecycle import ranges as r
from lifecycle.audit.account import Account
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.words import duration
from lifecycle.events import Capped, Discarded, HitResolved, PlanAgreed, ReadLost, Terminated, TransferStarted, Wanted
from lifecycle.layout import KV, AllPages, OutcomeRule
from lifecycle.policies import Pressure
from lifecycle.ranges import EMPTY
from lifecycle.reasons import Reason
from lifecycle.states import State

_LIMITS = (Reason.TIMEOUT, Reason.QUEUE_TIMEOUT)


def check_stop(ledger: Ledger, account: Account, seq: int, event: Terminated, planned: bool) -> None:
    """Hold the reason of a stop to the stop policy, and to what this rank must have proposed."""
    terms, reason = ledger.terms, event.reason
    if terms.stop is None:
        return

    def say(right: str) -> None:
        ledger.say(Law.OUTCOME, f"terminated as {reason}", right, (seq,), account)

    if reason is Reason.BEST_EFFORT:
        if terms.stop != "best_effort":
            say(f"another reason: the stop policy is {terms.stop}")
        elif Wanted not in account.marks and (not planned or terms.ranks == 1 or any(h.claimed for h in account.held.values())):
            say("only once admission wants the request")  # what has read all of its plan may stop for the others' sake
    elif reason in _LIMITS:
        if terms.limit is None:
            say(f"another reason: the stop policy is {terms.stop}")
        elif terms.ranks == 1:
            _check_limit(ledger, account, seq, reason)
    # Rows that were built before the loss are on their way for as many rounds as the lag is long.
    heard = terms.lag_ticks == 0 or ledger.round_number > account.lost_in_round + terms.lag_ticks
    if heard and account.lost_required and reason is not Reason.LOST_READ:
        say(f"{Reason.LOST_READ}: a read of a required pool was lost")
    if planned and account.reserved.keys() != account.held.keys() and reason.code > Reason.HOST_CAPACITY.code:
        say(f"{Reason.HOST_CAPACITY}: this rank did not reserve what was planned")
    capped = Capped in account.marks
    if reason is Reason.COMPLETED and capped:
        say(f"{Reason.READ_FAILED}: it was capped to page {account.ceiling_page}")
    elif reason is Reason.READ_FAILED and planned and not capped and _is_clamped(ledger):
        say("after Capped: nobody reads on behind a page that failed")


def _check_limit(ledger: Ledger, account: Account, seq: int, reason: Reason) -> None:
    terms = ledger.terms
    assert terms.limit is not None, "looked at by who calls"
    started = TransferStarted in account.marks
    if terms.lag_ticks == 0 and (reason is Reason.TIMEOUT) is not started:
        right = f"{Reason.TIMEOUT if started else Reason.QUEUE_TIMEOUT}: its reads had {'' if started else 'not '}begun"
        ledger.say(Law.OUTCOME, f"terminated as {reason}", right, (seq,), account)
        return
    since = account.issued_ns + (account.queued_ns if reason is Reason.TIMEOUT else 0)
    took, limit = ledger.now() - since, terms.limit.limit_ns(account.reserved_tokens)
    if took < limit and not ledger.gapped:
        ledger.say(Law.OUTCOME, f"terminated as {reason} after {duration(took)}", f"after {duration(limit)}", (seq,), account)


def note_lost(ledger: Ledger, account: Account, event: ReadLost) -> None:
    """Note that pages of a required pool, not answered yet, were lost: that must stop the prefetch."""
    if account.state is not State.TRANSFERRING:
        return
    for pool in ledger.groups[event.pool]:
        if pool in ledger.required:
            lo, hi = pool.window(account.start_page, account.plan_page)
            asked = r.intersect((event.pages,), r.span(lo, hi))
            if not account.lost_required and r.subtract(asked, account.answered.get(pool.name, EMPTY)):
                account.lost_required, account.lost_in_round = True, ledger.round_number


def check_hit(ledger: Ledger, account: Account, seq: int, event: HitResolved) -> None:
    """Hold a hit, and the reason for a short one, to what each pool is said to have."""
    account.miss = event.miss
    terms, kv_pages = ledger.terms, event.leading.get(KV)
    if terms.stop is None or KV in terms.absent:
        return  # not known, or a forged header that has no shard of anything
    every = ledger.every_page
    hit_pages, least = event.hit_page - account.start_page, max(1, terms.threshold_pages)
    if ledger.windows and hit_pages and (missing := hole(ledger, account, event.hit_page)) is not None:
        what, right = f"a hit up to page {event.hit_page}", f"another: there is no page {missing[1]} of {missing[0]}"
        ledger.say(Law.PLAN, what, right, (seq,), account)
    if event.miss is None and hit_pages >= least and all([event.leading.get(name) == hit_pages for name in every]):
        return  # nearly always

    def say(what: str, right: str) -> None:
        ledger.say(Law.PLAN, what, right, (seq,), account)

    if event.miss is Reason.QUERY_FAILED:
        if hit_pages:
            say(f"a hit of {hit_pages} pages though the query failed", "0")
        return
    if kv_pages is None or any(pool.name not in event.leading for pool in ledger.asked):
        names = ", ".join(pool.name for pool in ledger.asked)
        say(f"a hit of {hit_pages} pages, of {', '.join(event.leading) or 'no pool'}", f"of {names}, or {Reason.QUERY_FAILED}")
        return
    leading = min(event.leading.get(name, 0) for name in every)
    sure = min(event.leading[pool.name] for pool in ledger.asked)
    exact = len(every) + len(terms.absent) >= len(ledger.required) and not ledger.layout.has_trailing(terms.degrade)
    if hit_pages > leading or (exact and hit_pages != leading):
        say(f"a hit of {hit_pages} pages", f"{'' if exact else 'at most '}{leading}, the leading run of {', '.join(every)}")
    elif hit_pages < sure:
        say(f"a hit of {hit_pages} pages", f"at least {sure}, which every pool has")
    miss: tuple[Reason | None, ...] = (Reason.BELOW_THRESHOLD,)
    if hit_pages >= least:
        miss = (None,)
    elif not kv_pages:
        miss = (Reason.FULL_MISS, Reason.HEAD_MISSING)
    elif kv_pages >= least:
        miss = (Reason.SIDECAR_ABSENT,)
    if event.miss not in miss:
        say(f"{hit_pages} pages, {kv_pages} of them of kv, are a miss as {event.miss}", " or ".join(map(str, miss)))


def check_cut(ledger: Ledger, account: Account, seq: int, event: PlanAgreed) -> None:
    """Say where a plan is shorter than the hit although what nobody was promised had room for more."""
    room = _free_pages(ledger)
    if room is not None and event.plan_page < event.hit_page and event.plan_page - account.start_page < room:
        longest = min(event.hit_page, account.start_page + room)
        right = f"to page {longest}: {room} pages of kv are promised to nobody"
        ledger.say(Law.PLAN, f"the plan is cut to page {event.plan_page}", right, (seq,), account)


def _is_clamped(ledger: Ledger) -> bool:
    """Return whether a prefix shorter than the plan is published, so that a failed page is no reason to stop at once."""
    return ledger.layout.rule(ledger.terms.degrade) is not OutcomeRule.ALL_OR_NOTHING


def _free_pages(ledger: Ledger) -> int | None:
    """Return how many pages of kv are promised to nobody; None where other pools have a say, or it is not known."""
    return -ledger.over_budget(KV) if _is_clamped(ledger) and not ledger.gapped and ledger.terms.stop is not None else None


def _has_room(ledger: Ledger, pages: int) -> bool:
    """Return whether what nobody was promised holds every length up to `pages`, in each required pool with its own slots."""
    for pool in ledger.required:
        if pool.rides_on is None:
            most = pages if isinstance(pool.coverage, AllPages) else min(pages, pool.coverage.window_pages)
            if -ledger.over_budget(pool.name) < most:
                return False
    return True


def hole(ledger: Ledger, account: Account, end_page: int) -> tuple[str, int] | None:
    """Return a pool and a page that a prefix of `end_page` pages needs and this rank's shard is said not to have.

    A leading run that ends before the span names one page that is missing: the next one.
    """
    for name, window_pages in ledger.windows:
        run = account.leading.get(name)
        if run is not None:
            page = account.start_page + run
            if max(account.start_page, end_page - window_pages) <= page < end_page:
                return name, page
    return None


def is_known_to_fail(ledger: Ledger, account: Account, page: int) -> bool:
    """Return whether a page of a required pool that every page is read of has failed here."""
    for pool in ledger.required:
        if isinstance(pool.coverage, AllPages) and r.intersect(account.failed.get(pool.name, EMPTY), ((page, page + 1),)):
            return True
    return False


def check_promises(ledger: Ledger, account: Account, seq: int) -> None:
    """Say that a plan is made while the index has yet to take what it promised: room is made where that was to hang."""
    if ledger.terms.stop is None:
        return
    for other in ledger.promised.values():
        for pool, taken in other.taken.items():
            held = other.held.get(pool)
            if held is not None and (waiting := r.intersect(taken, held.open)):
                what = f"a plan is made, and {r.text(waiting)} of {pool} of prefetch {other.id} is not handed over"
                ledger.say(Law.PLAN, what, "after the hand-over", (max(other.marks.values()), seq), account)
                return


def check_revoked(ledger: Ledger, account: Account, seq: int, event: Discarded) -> None:
    """Hold the reason of a prefetch that never got a plan to this rank's own hit, and to the room that there was."""
    terms, reason = ledger.terms, event.reason
    if terms.stop is None:
        return

    def say(right: str) -> None:
        ledger.say(Law.OUTCOME, f"discarded as {reason} without a plan", right, (seq,), account)

    if account.hit_page is None:
        say("only once this rank's shard was asked")
        return
    hit_pages, least = account.hit_page - account.start_page, max(1, terms.threshold_pages)
    if hit_pages < least:
        if reason is Reason.HOST_CAPACITY:
            say(f"{account.miss}: the hit here is {hit_pages} pages")
        elif (miss := account.miss) is not None and (reason.code > miss.code or (terms.ranks == 1 and reason is not miss)):
            say(f"{miss}, as this rank found, or a reason that comes before it")
    elif terms.ranks == 1 and reason is not Reason.HOST_CAPACITY:
        say(f"a plan: the hit is {hit_pages} pages")
    room = _free_pages(ledger)
    if reason is Reason.HOST_CAPACITY and room is not None:
        enough = least if terms.pressure is Pressure.SHRINK else hit_pages
        if hit_pages >= least and room >= enough:
            say(f"a plan: {room} pages of kv are promised to nobody")
    elif reason is Reason.HOST_CAPACITY and hit_pages >= least and not ledger.gapped and _has_room(ledger, hit_pages):
        say(f"{'a plan' if terms.ranks == 1 else Reason.BELOW_THRESHOLD}: there is room for {hit_pages} pages in every pool")
