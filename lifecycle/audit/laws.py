"""The laws that a log must keep, and what is said when it does not. Holds no check."""

from dataclasses import dataclass, field
from enum import StrEnum

from lifecycle.audit.facts import Fact
from lifecycle.audit.words import name, plain


class Law(StrEnum):
    """What a log can be at fault with; one sentence of what is true when it is not."""

    HEADER = "header"
    """A log begins with one readable header, counts from 0 without unexplained gaps, and its clock never goes back."""

    LEGAL = "legal_move"
    """Each event is legal in the state of its prefetch, and ids count up."""

    ADMISSION = "admission"
    """What is issued fits the limits and the request; what is declined is declined for a reason that holds."""

    PLAN = "plan"
    """What is read follows from the hit and the layout; a rank reserves what was agreed, in all pools or in none."""

    CLAIM = "claim"
    """A page is read under one claim, in its pool's part of the plan, none after the end; a lost read is given up in time."""

    LATE = "late_event"
    """Nothing lands, fails or is published after the end; nothing is credited for what was discarded."""

    OUTCOME = "outcome"
    """It stops for a reason that holds, in time; what is published follows from what landed, by the rule of the layout."""

    EXACTLY_ONCE = "exactly_once"
    """Anchor, tokens, credit, lock, settlement and close: each is done once, by the right amount, in order."""

    PARTITION = "partition"
    """Each reserved page is discharged once, as the tail, clamped, duplicate or handed over, as it should be."""

    QUIESCENCE = "quiescence"
    """What a read may still write, or a prefetch not yet closed has handed over, is neither freed nor evicted."""

    SLOTS = "slots"
    """A slot is in one place at a time: free, held, resident or quarantined."""

    BALANCE = "balance"
    """Counts add up at each moment, and to nothing at an orderly end."""

    WAITING = "waiting"
    """A request waits for a reason that holds, and is tried in order, in time and within bounds; nobody overtakes."""

    SERVED = "served"
    """A request is served only what a prefetch has published."""

    OVERWRITTEN = "overwritten"
    """A resident page stays what landed there; what a scrub finds changed was overwritten afterwards, and not misread."""

    RANKS = "ranks"
    """All ranks log the same replicated events, and agree on the least that any of them landed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of one log: which law, where, what the log says and what would have been right."""

    law: Law
    rank: int
    prefetch: int | None
    request: str | None
    seqs: tuple[int, ...]  # the records that show it, the offending one last
    what: str
    right: str
    fact: Fact | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """Return one readable line, without control characters that a hostile log may have put into it."""
        where = f"rank {self.rank} seq {', '.join(map(str, self.seqs))}" if self.seqs else f"rank {self.rank}"
        whose = "" if self.prefetch is None else f" prefetch {self.prefetch}"
        if self.request is not None:
            whose += f"{' of' if whose else ''} request {name(repr(self.request))}"
        what, right = plain(self.what), plain(self.right)
        return f"{where}: {self.law}:{whose}{':' if whose else ''} {what} (right: {right})"
