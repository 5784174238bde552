"""The log of one rank, record by record: its header, its order, its gaps, its end; and each event under its law."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle import ranges as r
from lifecycle.audit import admission, discharges, moves, outcomes, overwrites, plans, reads, residency, waits
from lifecycle.audit.account import Account
from lifecycle.audit.laws import Law, Violation
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.slots import HELD, QUARANTINED
from lifecycle.audit.terms import BadHeader, Terms, terms_of
from lifecycle.events import (
    AnchorUnlocked,
    Clamped,
    Closed,
    Committed,
    CoordinatorStopped,
    Event,
    EventsLost,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    LogOpened,
    PagesLanded,
    PagesUnlocked,
    ReadClaimed,
    ReadFailed,
    Record,
    Settled,
    TokensCredited,
    TokensReturned,
)  # fmt: skip
from lifecycle.states import TERMINAL

BESIDE: Mapping[type[Event], Callable[[Ledger, int, Any], None]] = {
    **admission.HANDLERS,
    **waits.HANDLERS,
    **residency.HANDLERS,
    **overwrites.HANDLERS,
}
"""Events beside the prefetches, and the one that begins a prefetch."""

OF_PREFETCH: Mapping[type[Event], Callable[[Ledger, Account, int, Any], None]] = {
    **plans.HANDLERS,
    **moves.HANDLERS,
    **outcomes.HANDLERS,
    **reads.HANDLERS,
    **discharges.HANDLERS,
}
"""Events of a prefetch that was issued before."""

_ONCE = (AnchorUnlocked, TokensReturned, TokensCredited, Settled, Closed, PagesUnlocked)
_PAGES = (HostHandedOver, HostReleased, HostQuarantined)
_LATE = (PagesLanded, ReadFailed, Committed, Clamped)


class RankAudit:
    """Checks one log as it is fed. `place` is the log's place in what was given, its rank until a header says better."""

    def __init__(self, place: int, tell: Callable[[Violation], None]) -> None:
        self._place = place
        self._tell = tell
        self._next = 0
        self._at_ns = 0
        self._header_seq = 0
        self.ledger: Ledger | None = None
        self.stopped: int | None = None
        self.gapped = False

    @property
    def rank(self) -> int:
        """Return the rank that the header names."""
        return self._place if self.ledger is None else self.ledger.terms.rank

    @property
    def terms(self) -> Terms | None:
        """Return what the header says, once it was read."""
        return None if self.ledger is None else self.ledger.terms

    def feed(self, record: Record) -> None:
        """Check one record against all before it."""
        seq, event, ledger = record.seq, record.event, self.ledger
        if seq == self._next and ledger is not None and record.at_ns >= self._at_ns and self.stopped is None:
            kind = type(event)
            handler = OF_PREFETCH.get(kind)
            if handler is not None:
                account = ledger.accounts.get(event.prefetch)  # type: ignore[union-attr]  # every one of these has it
                if account is not None:  # nearly every record of a log that is sound
                    self._next, self._at_ns = seq + 1, record.at_ns
                    handler(ledger, account, seq, event)
                    return
            else:
                beside = BESIDE.get(kind)
                if beside is not None:
                    self._next, self._at_ns = seq + 1, record.at_ns
                    beside(ledger, seq, event)
                    return
        self._feed_any(record)

    def _feed_any(self, record: Record) -> None:
        seq, event = record.seq, record.event
        if seq != self._next:
            self._jump(seq)
        self._next = seq + 1
        if record.at_ns < self._at_ns:
            self._say(f"time goes back from {self._at_ns} to {record.at_ns} ns", "a monotonic clock", seq)
        self._at_ns = record.at_ns
        ledger = self.ledger
        if ledger is not None:
            kind = type(event)
            handler = OF_PREFETCH.get(kind)
            if handler is not None:
                id_: int = event.prefetch  # type: ignore[union-attr]  # every event of OF_PREFETCH has one
                account = ledger.accounts.get(id_)
                if account is not None:
                    handler(ledger, account, seq, event)
                else:
                    self._unknown(ledger, seq, id_, event)
            else:
                beside = BESIDE.get(kind)
                if beside is not None:
                    beside(ledger, seq, event)
                else:
                    self._of_log(seq, event)
        else:
            self._of_log(seq, event)
        if self.stopped is not None and seq > self.stopped:
            self._say(f"{type(event).__name__} after the stop", "nothing", self.stopped, seq)

    # --- the log itself ------------------------------------------------------------------------------------------------

    def _say(self, what: str, right: str, *seqs: int) -> None:
        self._tell(Violation(Law.HEADER, self.rank, None, None, seqs, what, right))

    def _of_log(self, seq: int, event: Event) -> None:
        if isinstance(event, LogOpened):
            self._opened(seq, event)
        elif isinstance(event, EventsLost):
            if event.first_seq != seq or event.events < 1:
                self._say(f"{event.events} events from {event.first_seq} on are lost", f"1 or more from {seq} on", seq)
            self._next = seq + max(1, event.events)
            self._forget()
        elif self.ledger is None:
            if seq == 0:
                self._say(f"the log begins with {type(event).__name__}", "LogOpened (nothing can be checked)", seq)
        elif isinstance(event, CoordinatorStopped):
            self._stop(self.ledger, seq, event)

    def _opened(self, seq: int, event: LogOpened) -> None:
        if self.ledger is not None:
            self._say("the log is opened a second time", "one run in one log", self._header_seq, seq)
            return
        try:
            self.ledger = Ledger(terms_of(event), self._tell, lambda: self._at_ns)
        except BadHeader as error:
            self._say(str(error), "a header that says what was run", seq)
            return
        self._header_seq = seq
        if seq != 0:
            self._say("the header is not the first record", "LogOpened at seq 0", seq)

    def _jump(self, seq: int) -> None:
        what = f"record {seq} comes after record {self._next - 1}"
        self._say(what, f"record {self._next}, or EventsLost in place of what is missing", seq)
        if seq > self._next:
            self._forget()

    def _forget(self) -> None:
        self.gapped = True
        if self.ledger is not None:
            self.ledger.forget()

    def _unknown(self, ledger: Ledger, seq: int, id_: int, event: Event) -> None:
        name = type(event).__name__
        if id_ > ledger.last_id or id_ < 1:
            if not self.gapped and ledger.strange(id_):
                right = f"ids up to {ledger.last_id} were"
                ledger.say(Law.LEGAL, f"{name} of prefetch {id_}, which was never issued", right, (seq,), id_)
            return
        over = ledger.over.get(id_)
        if self.gapped and over is None:
            return
        law = Law.LEGAL
        if isinstance(event, _ONCE):
            law = Law.EXACTLY_ONCE
        elif isinstance(event, _PAGES):
            law = Law.PARTITION
        elif isinstance(event, _LATE):
            law = Law.LATE
        elif isinstance(event, ReadClaimed):
            law = Law.CLAIM
        seqs = (seq,) if over is None else (over[1], seq)
        ledger.say(law, f"{name} after everything of it was closed", "nothing", seqs, id_)

    # --- the end -------------------------------------------------------------------------------------------------------

    def _stop(self, ledger: Ledger, seq: int, event: CoordinatorStopped) -> None:
        self.stopped = seq if self.stopped is None else self.stopped
        for account in ledger.accounts.values():
            self._unfinished(ledger, account, seq)
        waits.stopped(ledger, seq)
        if ledger.gapped:
            return

        def say(what: str, right: str) -> None:
            ledger.say(Law.BALANCE, what, right, (seq,))

        open_debts = sum(len(account.debts()) for account in ledger.accounts.values())
        if event.open_obligations != open_debts:
            say(f"{event.open_obligations} debts are open at the stop", f"{open_debts}")
        if ledger.occupied_tokens:
            say(f"{ledger.occupied_tokens} tokens are occupied at the stop", "0")
        for pool in ledger.own:
            slots = ledger.slots[pool]
            if held := slots.count(HELD):
                say(f"{held} slots of {pool} are held at the stop", "0")
            if event.quarantined_pages.get(pool) != slots.count(QUARANTINED):
                what = f"{event.quarantined_pages.get(pool)} pages of {pool} are quarantined at the stop"
                say(what, f"{slots.count(QUARANTINED)}")

    def _unfinished(self, ledger: Ledger, account: Account, seq: int) -> None:
        since = max(account.marks.values())

        def say(law: Law, what: str, right: str) -> None:
            ledger.say(law, what, right, (since, seq), account)

        if account.state not in TERMINAL:
            say(Law.EXACTLY_ONCE, f"it is {account.state} at the stop", "ended, at the latest discarded as shutdown")
            return
        if Settled in account.marks:
            if Closed not in account.marks:
                say(Law.EXACTLY_ONCE, "it is settled and not closed at the stop", "closed")
            elif account.published:
                say(Law.EXACTLY_ONCE, "the lock on what it handed over is never dropped", "after the close")
            return
        for pool, held in account.held.items():
            if held.open:
                say(Law.PARTITION, f"pages {r.text(held.open)} of {pool} were never discharged", "each page once")
        others = [debt for debt in account.debts() if not debt.startswith("pages")]
        what = f"it is not settled at the stop, open: {', '.join(others) or 'nothing but pages'}"
        say(Law.EXACTLY_ONCE, what, "each debt once, then Settled and Closed")
