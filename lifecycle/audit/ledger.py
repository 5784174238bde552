"""One rank's second set of books: what is in flight, where slots are, what counts say, and what is at fault."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lifecycle import ranges as r
from lifecycle.audit.account import Account, Held
from lifecycle.audit.facts import Fact, Overpromised
from lifecycle.audit.laws import Law, Violation
from lifecycle.audit.slots import NAMES, Offence, PoolSlots
from lifecycle.audit.terms import Terms
from lifecycle.audit.waitlist import Waits
from lifecycle.events import Closed, Event, PageOverwritten, TokensReturned
from lifecycle.layout import AllPages, TrailingPages
from lifecycle.ranges import Range

_REMEMBERED = 1024  # prefetches that are over, remembered for better words only


@dataclass(slots=True)
class RequestView:
    """What the log says of a request until it is finished."""

    attempt: int
    prefetch: int | None = None  # the newest attempt's, if it was issued
    tokens: int = 0  # credited
    taken_seq: int | None = None
    queries: int = 0  # how often this attempt was issued
    served: bool = False
    waits_since: int | None = None  # the tick at which it first waited since it was issued


class Ledger:
    """Everything that is known of one rank's run. After a gap (`gapped`) counts are unknown and say nothing.

    Memory: one account per prefetch in flight, one view per request not finished, one byte per host slot touched.
    """

    def __init__(self, terms: Terms, tell: Callable[[Violation], None], now: Callable[[], int]) -> None:
        self.terms = terms
        self.now = now  # the time of the record that is being checked
        self.layout = terms.layout
        self.own = [pool.name for pool in terms.layout.own]
        self.own_set = frozenset(self.own)
        self.groups = {group[0].name: group for group in terms.layout.groups}
        self.required = terms.layout.required(terms.degrade)
        self.asked = [pool for pool in self.required if pool.name not in terms.absent]  # pools that this rank's query is for
        self.windows = [(p.name, p.coverage.window_pages) for p in self.asked if isinstance(p.coverage, TrailingPages)]
        self.every_page = [
            pool.name for pool in self.required if isinstance(pool.coverage, AllPages) and pool.name not in terms.absent
        ]  # required pools of which this rank must have every page
        self.gapped = False
        self.accounts: dict[int, Account] = {}
        self.over: OrderedDict[int, tuple[str, int]] = OrderedDict()  # id -> request, seq of the end; the last few
        self.strangers: dict[int, None] = {}  # ids that were never issued, told once
        self.requests: dict[str, RequestView] = {}
        self.waits = Waits()
        self.last_id = 0
        self.last_word: int | None = None  # seq of the first record that ended the whole run (shutdown, failed round)
        self.occupied_tokens = 0
        self.reserved_pages = dict.fromkeys(self.own, 0)  # agreed
        self.resident_pages = dict.fromkeys(self.own, 0)  # agreed
        self.quarantined_pages = dict.fromkeys(self.own, 0)  # agreed
        self.lost_pages = dict.fromkeys(self.own, 0)  # here, by prefetches that are closed
        self.slots = {pool: PoolSlots(terms.capacity_pages[pool]) for pool in self.own}
        self.servings: deque[tuple[str, tuple[tuple[int, int, int], ...]]] = deque(maxlen=_REMEMBERED)
        self.told_overwritten: dict[tuple[str, int], PageOverwritten] = {}  # the last that was found, by pool and slot
        self.overwritten = 0  # pages that a scrub has named so far
        self.round_number = 0
        self.round_seq = 0
        self.rounds: deque[tuple[int, int, int]] = deque(maxlen=3)  # the last ones: record, time, rows
        self.promised: dict[int, Account] = {}  # published, and their anchor still locked
        self.promised_seq = 0  # when that last changed
        self._tell = tell

    def say(
        self, law: Law, what: str, right: str, seqs: Sequence[int], of: Account | int | None = None, request: str | None = None,
        fact: Fact | None = None,
    ) -> None:  # fmt: skip
        """Report a violation."""
        prefetch = of
        if isinstance(of, Account):
            prefetch, request = of.id, of.request
        elif isinstance(of, int) and of in self.over:
            request = self.over[of][0]
        assert prefetch is None or isinstance(prefetch, int)
        self._tell(Violation(law, self.terms.rank, prefetch, request, tuple(seqs), what, right, fact))

    def goes_on(self, what: str, seq: int, of: Account | None = None, request: str | None = None) -> None:
        """Say, once, that something moves though a record before has ended the whole run."""
        if self.last_word is not None:
            right = "nothing moves any more, but is discarded"
            self.say(Law.LATE, f"{what} after the run was ended", right, (self.last_word, seq), of, request)
            self.last_word = None

    def once(self, account: Account, seq: int, event: Event, law: Law = Law.EXACTLY_ONCE) -> bool:
        """Return whether this is the first event of its type for the prefetch, or say that it is not."""
        kind = type(event)
        first = account.marks.get(kind)
        account.marks[kind] = seq
        if first is None:
            return True
        self.say(law, f"{kind.__name__} came a second time", "once", (first, seq), account)
        return False

    def held(self, account: Account, seq: int, pool: str, name: str) -> Held | None:
        """Return the pages that the prefetch reserved in a pool, or say that it reserved none."""
        held = account.held.get(pool)
        if held is None:
            law = Law.CLAIM if name.startswith("Read") else Law.PARTITION
            self.say(law, f"{name} of pool {pool!r}, where nothing was reserved", "only of reserved pages", (seq,), account)
        return held

    def place(
        self, pool: str, offence: Offence | None, what: str, seq: int, law: Law, of: Account | None = None,
        fact: Fact | None = None,
    ) -> None:  # fmt: skip
        """Say that a slot was not where it had to be, if there is such a slot."""
        if offence is not None:
            slot, place = offence
            holders = self._holders(pool, slot)
            seqs = [account.held[pool].gone[-1][2] for account in holders if account.held[pool].gone]
            whose = of or (holders[0] if len(holders) == 1 else None)
            right = f"slot {slot} is {NAMES[place]} here"
            self.say(law, f"slot {slot} of {pool} is {what}", right, (*seqs, seq), whose, fact=fact)

    def _holders(self, pool: str, slot: int) -> list[Account]:
        accounts = [account for account in self.accounts.values() if pool in account.held]
        return [account for account in accounts if any(lo <= slot < hi for lo, hi in account.held[pool].runs)]

    def request_of(self, id_: int) -> str | None:
        """Return the request of a prefetch that is in flight, or was a while ago."""
        account, over = self.accounts.get(id_), self.over.get(id_)
        return account.request if account is not None else over[0] if over is not None else None

    def over_budget(self, pool: str) -> int:
        """Return by how many pages what is promised of a pool exceeds what the smallest rank has."""
        promised = self.reserved_pages[pool] + self.resident_pages[pool] + self.quarantined_pages[pool]
        return promised - self.terms.budget_pages[pool]

    def check_promise(self, pool: str, seq: int, of: Account | None, request: str | None = None) -> None:
        """Say where more is promised than there is, or what was lost here is still counted as room."""
        if self.gapped:
            return
        budget, over = self.terms.budget_pages[pool], self.over_budget(pool)
        if over > 0:
            right = f"at most {budget} of {pool} promised in all"
            fact = Overpromised(over, self._returned(pool)) if self.terms.observed else None  # no difference of ours is known
            self.say(Law.BALANCE, f"{over} pages of {pool} too many are promised", right, (seq,), of, request, fact)
        agreed, lost = self.quarantined_pages[pool], self.lost_pages[pool]
        if agreed < lost:
            right = f"{lost}, what lost reads took here"
            self.say(Law.BALANCE, f"{agreed} pages of {pool} are off the budget", right, (seq,), of, request)
            self.lost_pages[pool] = agreed

    def _returned(self, pool: str) -> int:
        """Return how many pages are promised until the close of their prefetch, and free already."""
        of = (each for each in self.accounts.values() if pool in each.held and Closed not in each.marks)
        return sum(r.count(pages) for each in of for pages, how, _ in each.held[pool].gone if how == "released")

    def close(self, account: Account, seq: int) -> None:
        """Forget a prefetch that is over."""
        del self.accounts[account.id]
        self.promised.pop(account.id, None)
        self.over[account.id] = (account.request, seq)
        if len(self.over) > _REMEMBERED:
            self.over.popitem(last=False)

    def strange(self, id_: int) -> bool:
        """Return whether this is the first word of a prefetch that was never issued; what it holds is not known."""
        first = id_ not in self.strangers
        self.strangers[id_] = None
        if len(self.strangers) > _REMEMBERED:
            del self.strangers[next(iter(self.strangers))]
        for slots in self.slots.values():
            slots.blind = True
        return first

    def return_tokens(self, account: Account) -> None:
        """Take what the prefetch reserved off the occupancy."""
        if TokensReturned not in account.marks:
            self.occupied_tokens -= account.reserved_tokens

    def forget(self) -> None:
        """Note that events were lost here: what is known so far says nothing about what comes."""
        self.gapped = True
        self.accounts.clear()
        self.over.clear()
        self.requests.clear()
        self.rounds.clear()
        self.promised.clear()
        self.servings.clear()
        self.waits = Waits()
        for slots in self.slots.values():
            slots.forget()


def is_range(pages: Range, lo: int, hi: int) -> bool:
    """Say whether `pages` is a range that is not empty, within [lo, hi)."""
    return lo <= pages[0] < pages[1] <= hi


def text(pages: Range) -> str:
    """Return one range for people."""
    return r.text((pages,))
