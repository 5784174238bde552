"""Every error that this library raises. Each names the operation, the subject, the state and the way out."""

from collections.abc import Iterable


class LifecycleError(Exception):
    """Base of every error that this library raises."""


class ConfigError(LifecycleError, ValueError):
    """Raised when a policy, a limit or a size makes no sense, before anything starts."""


class LayoutError(ConfigError):
    """Raised when pool declarations contradict each other, naming the pool, or are none."""

    def __init__(self, layout: str, pool: str | None, why: str) -> None:
        self.layout, self.pool, self.why = layout, pool, why
        where = "" if pool is None else f"pool {pool!r}: "
        super().__init__(f"cannot build layout {layout!r}: {where}{why}")


class UnknownPool(LayoutError):
    """Raised when a pool is named that the layout does not have. Nothing was done."""

    def __init__(self, layout: str, pool: str, pools: Iterable[str]) -> None:
        self.layout, self.pool, self.why = layout, pool, "no such pool"
        there = ", ".join(pools)
        ConfigError.__init__(self, f"cannot find pool {pool!r} in layout {layout!r}: no such pool (this layout has: {there})")


class BadTokens(LifecycleError, ValueError):
    """Raised when token ids or a page size cannot be turned into page keys."""


class BadKey(LifecycleError, ValueError):
    """Raised when a string is not a page key. Nothing was looked up, read or written."""

    def __init__(self, key: object, page: int | None = None) -> None:
        self.key, self.page = key, page
        where = "" if page is None else f" of page {page}"
        shown = repr(key)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"cannot use {shown} as the key{where}: a page key is 64 lower-case hex digits (see page_keys)")


class WrongAnchor(BadKey):
    """Raised when a request's keys do not pass the anchor that is given for them. Nothing changed."""

    def __init__(self, request: str, pages: int, keys: int) -> None:
        self.request, self.pages = request, pages
        self.key, self.page = None, pages - 1
        why = f"there are only {keys} keys" if pages > keys else "the anchor ends with another key"
        LifecycleError.__init__(
            self,
            f"cannot issue request {request!r}: its keys do not pass the anchor at page {pages}: {why}"
            " (match these keys, and give the anchor of that match)",
        )


class BadRequest(LifecycleError, ValueError):
    """Raised when a request id or an attempt number cannot be logged and compared. Nothing changed."""


class IllegalTransition(LifecycleError):
    """Raised when a trigger, or an event, is not legal in the prefetch's state. Nothing changed.

    `rule` says when it would be, where the table of moves does not.
    """

    def __init__(self, prefetch: int, trigger: str, state: str, legal: Iterable[str], rule: str = "") -> None:
        self.prefetch, self.trigger, self.state, self.legal = prefetch, str(trigger), str(state), tuple(map(str, legal))
        way_out = rule or f"legal here: {', '.join(self.legal) or 'nothing, terminal'}"
        super().__init__(f"cannot {self.trigger} prefetch {prefetch}: it is {self.state} ({way_out})")


class NotInFlight(IllegalTransition):
    """Raised when an event comes for a prefetch that was never issued, or is closed. Nothing changed."""

    def __init__(self, prefetch: int, event: str) -> None:
        super().__init__(prefetch, f"apply {event} to", "not in flight", (), "it was never issued, or is closed")


class ObligationError(LifecycleError):
    """Raised when something is discharged that is not open: a second release, unlock or return. Nothing changed.

    `prefetch` is 0 where it is nobody's.
    """

    def __init__(self, prefetch: int, what: str, why: str) -> None:
        self.prefetch, self.what, self.why = prefetch, what, why
        whose = f" for prefetch {prefetch}" if prefetch else ""
        super().__init__(f"cannot {what}{whose}: {why}")


class DuplicateAttempt(LifecycleError):
    """Raised when an attempt is issued that was issued before, or an older one. The first one goes on untouched."""

    def __init__(self, request: str, attempt: int, newest: int, state: str) -> None:
        self.request, self.attempt, self.newest, self.state = request, attempt, newest, state
        super().__init__(
            f"cannot issue request {request!r} attempt {attempt}: attempt {newest} exists and is {state}"
            f" (issue attempt {newest + 1} to supersede it)"
        )


class UnknownRequest(LifecycleError, KeyError):
    """Raised when a verb names a request that was never issued, or is finished."""

    def __init__(self, operation: str, request: str) -> None:
        self.operation, self.request = operation, request
        super().__init__(f"cannot {operation} request {request!r}: it was never issued, or is finished (issue it first)")

    def __str__(self) -> str:
        return str(self.args[0])


class WaitError(LifecycleError):
    """Raised when a wait begins that is on already, or one ends that is not. Nothing changed."""

    def __init__(self, operation: str, request: str, why: str) -> None:
        self.operation, self.request, self.why = operation, request, why
        super().__init__(f"cannot {operation} request {request!r}: {why}")


class CoordinatorClosed(LifecycleError):
    """Raised when a verb is called on a coordinator that was closed or whose round failed."""


class AnchorLost(LifecycleError):
    """Raised by a prefix index when an anchor is not in it any more. Nothing was locked."""


class HostExhausted(LifecycleError):
    """Raised by host memory when an allocation does not fit. Nothing was allocated, in any pool."""

    def __init__(self, pool: str, asked_pages: int, free_pages: int) -> None:
        self.pool, self.asked_pages, self.free_pages = pool, asked_pages, free_pages
        super().__init__(
            f"cannot allocate {asked_pages} pages of pool {pool!r}: {free_pages} are free (evict or release first)"
        )


class DoubleRelease(LifecycleError):
    """Raised by host memory when a slot is given back that is not held. Nothing was released."""


class IntegrityError(LifecycleError):
    """Raised by `check_integrity()` with everything that does not add up."""

    def __init__(self, subject: str, faults: Iterable[str]) -> None:
        self.subject, self.faults = subject, tuple(faults)
        super().__init__(f"{subject} does not add up: " + "; ".join(self.faults))


class SyncFailed(LifecycleError):
    """Raised when a round failed on this rank or on a peer. Nothing is published afterwards; start a fresh coordinator."""

    def __init__(self, round_number: int, participants: int, cause: str) -> None:
        self.round_number, self.participants, self.cause = round_number, participants, cause
        super().__init__(
            f"cannot finish round {round_number} of {participants} ranks: {cause}"
            " (nothing is published from here on; close this coordinator and start a fresh one with an empty index)"
        )


class RankDivergence(SyncFailed):
    """Raised on every rank, in the same round, when the replicas of the ranks differ.

    `step` is the number of the first replicated step that differs and `sides` what each rank did there, as far as known.
    """

    def __init__(
        self, round_number: int, participants: int, cause: str, step: int | None = None, sides: tuple[str, ...] = ()
    ) -> None:
        super().__init__(round_number, participants, cause)
        self.step, self.sides = step, sides


class LogError(LifecycleError):
    """Raised when an event log cannot be opened, written or read; names the file."""


class SchemaTooNew(LogError):
    """Raised when a log was written by a newer schema than this library reads."""


class StoreError(LifecycleError):
    """Raised when a page store cannot be opened or used at all (never for one bad page)."""
