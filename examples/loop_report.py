"""What one rank hands to whoever adds the ranks up."""

import msgspec


class RankReport(msgspec.Struct, frozen=True):
    """What one rank says at its end. `replicated` must be the same on all ranks; `own` is added up over them."""

    rank: int
    run: str
    log: str  # the path of its event log
    replicated: dict[str, int]
    upsets: dict[str, int]  # what was done to prefetches on purpose, by verb and state; replicated, too
    own: dict[str, int]
    faults: dict[str, int]  # what its store did on purpose
    broken: tuple[str, ...]  # what `check_integrity` found, and events that were lost
    wall_s: float
    write_back_blocked_s: float
