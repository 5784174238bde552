"""The ledger: what was taken, by whom, when, and how it went back. Says precisely what happened twice, or never.

For the tests of an engine: tell it what your pools, locks and budgets do, or put `LedgerMemory`, `LedgerIndex` and
`TokenBudget` around them. Every note is an event with a number, counted from 1 unless you give your own.
"""

from collections.abc import Iterable
from typing import NamedTuple


class LedgerError(AssertionError):
    """Raised when something is given back that is not held, is taken twice, or was never given back."""


class Taken(NamedTuple):
    """Something that is held."""

    event: int
    by: str


class Gone(NamedTuple):
    """Something that went back, and as what."""

    event: int
    how: str


class Ledger:
    """Keeps what is held. `pool` names a page pool, pages are slot numbers or page numbers, as the engine counts."""

    def __init__(self) -> None:
        self.event = 0
        self._how = ""
        self._held: dict[tuple[str, str], dict[object, Taken]] = {}  # (word, where) -> unit -> who holds it
        self._gone: dict[tuple[str, str], dict[object, Gone]] = {}
        self._amounts: dict[object, int] = {}
        self.errors: list[str] = []  # everything raised so far: a caller may have taken it for a port that failed

    def says(self, how: str) -> "Ledger":
        """Name what the next give-back is, for example `tail`; returns itself: `with` is not needed."""
        self._how = how
        return self

    # --- pages ---------------------------------------------------------------------------------------------------------

    def take(self, pool: str, pages: Iterable[int], by: str = "", event: int | None = None) -> None:
        """Note that pages are held from now on; raises `LedgerError` if one is held already."""
        at = self._at(event)
        for page in pages:
            self._take(("page", f"pool {pool}"), page, by, at)

    def give_back(self, pool: str, pages: Iterable[int], how: str = "", event: int | None = None) -> None:
        """Note that pages went back, all or none; raises `LedgerError`, naming the first that is not held."""
        at, how = self._at(event), self._said(how, "released")
        wanted = list(pages)
        for page in wanted:
            self._check_held(("page", f"pool {pool}"), page, how, at, "released")
        for page in wanted:
            self._give_back(("page", f"pool {pool}"), page, how, at, "released")

    def check_held(self, pool: str, pages: Iterable[int], how: str = "") -> None:
        """Raise `LedgerError`, naming the first page that is not held, before anything is done to it."""
        for page in pages:
            self._check_held(("page", f"pool {pool}"), page, how or self._how or "released", self.event + 1, "released")

    # --- locks and tokens ----------------------------------------------------------------------------------------------

    def lock(self, anchor: str, by: str, event: int | None = None) -> None:
        """Note a lock; one holder may lock an anchor once."""
        self._take(("lock", f"by {by}"), anchor, by, self._at(event))

    def unlock(self, anchor: str, by: str, how: str = "", event: int | None = None) -> None:
        """Note that the lock was dropped."""
        self._give_back(("lock", f"by {by}"), anchor, self._said(how, "unlocked"), self._at(event), "dropped")

    def reserve(self, tokens: int, by: str, event: int | None = None) -> None:
        """Note a reservation of tokens; one holder may have one."""
        at = self._at(event)
        self._take(("reservation", "of tokens"), by, by, at)
        self._amounts[by] = tokens

    def return_tokens(self, tokens: int, by: str, how: str = "", event: int | None = None) -> None:
        """Note that a reservation ended, by its whole amount."""
        at = self._at(event)
        key, how = ("reservation", "of tokens"), self._said(how, "returned")
        self._check_held(key, by, how, at, "returned")
        if self._amounts[by] != tokens:
            taken = self._held[key][by]
            raise self._error(
                f"{tokens} tokens of {by} returned at event {at}: {self._amounts[by]} were reserved at event {taken.event}"
                " (return the amount that was recorded)"
            )
        self._give_back(key, by, how, at, "returned")
        del self._amounts[by]

    # --- looking -------------------------------------------------------------------------------------------------------

    @property
    def reserved_tokens(self) -> int:
        """How many tokens are reserved now."""
        return sum(self._amounts.values())

    def held(self, pool: str) -> list[int]:
        """Return the pages of a pool that are held now."""
        return sorted(page for page in self._held.get(("page", f"pool {pool}"), {}) if isinstance(page, int))

    def locked_by(self, by: str) -> list[str]:
        """Return the anchors that a holder has locked."""
        return [str(anchor) for anchor in self._held.get(("lock", f"by {by}"), {})]

    def leaks(self) -> list[str]:
        """Return what is held now, each with where it was taken."""
        return [
            f"{word} {unit} {_of(where)} was never given back: taken at event {taken.event}{_by(taken.by)}"
            for (word, where), units in self._held.items()
            for unit, taken in units.items()
        ]

    def check_empty(self) -> None:
        """Raise `LedgerError` with everything that went wrong before, and everything that is still held."""
        if leaks := self.errors + self.leaks():
            more = f" (and {len(leaks) - 20} more)" if len(leaks) > 20 else ""
            raise LedgerError("; ".join(leaks[:20]) + more)

    # --- one unit ------------------------------------------------------------------------------------------------------

    def _error(self, text: str) -> LedgerError:
        self.errors.append(text)
        return LedgerError(text)

    def _at(self, event: int | None) -> int:
        self.event = self.event + 1 if event is None else event
        return self.event

    def _said(self, how: str, otherwise: str) -> str:
        said, self._how = how or self._how or otherwise, ""
        return said

    def _take(self, key: tuple[str, str], unit: object, by: str, at: int) -> None:
        held = self._held.setdefault(key, {})
        if unit in held:
            first = held[unit]
            raise self._error(
                f"{key[0]} {unit} {_of(key[1])} taken twice: first at event {first.event}{_by(first.by)}, again at event"
                f" {at}{_by(by)}"
            )
        held[unit] = Taken(at, by)
        self._gone.get(key, {}).pop(unit, None)

    def _check_held(self, key: tuple[str, str], unit: object, how: str, at: int, verb: str) -> None:
        if unit in self._held.get(key, {}):
            return
        gone, what = self._gone.get(key, {}).get(unit), f"{key[0]} {unit} {_of(key[1])}"
        if gone is None:
            raise self._error(f"{what} {verb} as {how} at event {at}, and it was never taken")
        raise self._error(f"{what} {verb} twice: first as {gone.how} at event {gone.event}, again as {how} at event {at}")

    def _give_back(self, key: tuple[str, str], unit: object, how: str, at: int, verb: str) -> None:
        self._check_held(key, unit, how, at, verb)
        del self._held[key][unit]
        self._gone.setdefault(key, {})[unit] = Gone(at, how)


def _of(where: str) -> str:
    return where if where.startswith(("by ", "of ")) else f"of {where}"


def _by(by: str) -> str:
    return f" by {by}" if by else ""
