"""What this rank says of a prefetch in the next round: a pure function of its local side, the policies and the time."""

from dataclasses import dataclass

from lifecycle.coverage import must_land
from lifecycle.layout import Layout
from lifecycle.local import Local
from lifecycle.policies import BestEffort, Policies, Timeout
from lifecycle.reasons import Reason
from lifecycle.rows import NEUTRAL, Report
from lifecycle.states import State


@dataclass(slots=True)
class Progress:
    """What only the edge knows: when things began (monotonic ns), and whether reads that matter are still out."""

    issued_ns: int
    started_ns: int | None = None  # the first claimed read
    all_answered: bool = False  # every read below the ceiling is answered
    reserve_failed: bool = False  # host memory refused what the budget allowed


def report(layout: Layout, policies: Policies, local: Local, progress: Progress, now_ns: int) -> Report:
    """Return this rank's row (DESIGN section 8, votes)."""
    state, runs = local.shared.state, local.runs()
    landed = tuple([runs[name] for name in layout.index_of])
    if state is State.TRANSFERRING:
        final = progress.all_answered
    elif state is State.ISSUED or state is State.TERMINATED:
        final = state is State.TERMINATED
    else:
        return Report(NEUTRAL, NEUTRAL, True, False, True, local.settled, NEUTRAL, landed)
    must = None if final and not local.lost_required else must_stop(layout, policies, local, progress, now_ns)
    can_stop = final or (local.wanted and isinstance(policies.stop, BestEffort))
    reason = must or (local.miss if state is State.ISSUED else None)
    return Report(
        local.hit_page,
        local.ceiling(),
        can_stop,
        must is not None,
        final,
        local.settled,
        reason.code if reason else NEUTRAL,
        landed,
    )


def must_stop(layout: Layout, policies: Policies, local: Local, progress: Progress, now_ns: int) -> Reason | None:
    """Return why this prefetch must stop on this rank now, or None."""
    if local.shared.state is State.TERMINATED:
        return None
    if local.lost_required:
        return Reason.LOST_READ
    if local.failed and any(must_land(layout, policies.degrade, layout.pool(name)) for name in local.failed):
        return Reason.READ_FAILED
    if progress.reserve_failed:
        return Reason.HOST_CAPACITY
    deadline = deadline_ns(policies, local, progress)
    if deadline is not None and now_ns >= deadline:
        return Reason.TIMEOUT if progress.started_ns is not None else Reason.QUEUE_TIMEOUT
    return None


def deadline_ns(policies: Policies, local: Local, progress: Progress) -> int | None:
    """Return when the limit that runs now ends: one for queueing, one from the first claimed read; None without a limit."""
    if not isinstance(policies.stop, Timeout) or local.shared.terminal:
        return None
    since = progress.issued_ns if progress.started_ns is None else progress.started_ns
    return since + policies.stop.limit_ns(local.shared.reserved_tokens)
