"""Seeded bugs in the reference stores: slots, the prefix index, page files, beliefs."""

from lifecycle.testing.mutants_plant import Mutant

_MATCH = "stores/prefix_match.py"
_BELIEFS = "stores/pages/beliefs.py"

STORES: tuple[Mutant, ...] = (
    Mutant(
        "free_slots_are_freed", "D", "stores/host_slots.py", "bad = np.flatnonzero(self._state[start:stop] != HELD)",
        "bad = np.flatnonzero(self._state[start:stop] == QUARANTINED)",
        "Host memory takes back a slot that is free already.",
    ),
    Mutant(
        "locked_pages_go", "C", "stores/prefix_evict.py", "and not node.children and not node.kv_locks",
        "and not node.children",
        "The index evicts what a prefetch in flight has locked.",
    ),
    Mutant(
        "match_over_a_hole", "A", _MATCH, "fits = last_hole < (0 if window is None else np.maximum(0, at + 1 - window))",
        "fits = last_hole < (1 if window is None else np.maximum(0, at + 1 - window))",
        "A match serves a prefix whose first page a sidecar lacks.",
    ),
    Mutant(
        "riders_are_served_uncovered", "A", _MATCH, "slots[~self._covered[rows.rider[pool], lo:hi]] = -1", "pass",
        "A draft reads slots that hold nothing of it.",
    ),
    Mutant(
        "any_key_will_do", "J", "stores/pages/header.py", "if header[:_SUMS_AT] != known:",
        "if header[:_KEY_AT] != known[:_KEY_AT]:",
        "A page is served though its header has another key.",
    ),
    Mutant(
        "belief_after_failure", "K", _BELIEFS, "if code in _AVOIDED:", "if False:",
        "A page that cannot be read is promised again, to every request.",
    ),
    Mutant(
        "belief_for_ever", "K", _BELIEFS, "self._absent.get(name, now + 1) <= now", "self._absent.get(name, now + 1) < 0",
        "A page that failed once is believed absent for ever.",
    ),
    Mutant(
        "bad_page_stays", "K", _BELIEFS, "if name in self._bad or", "if",
        "A page found bad is not replaced by the next write.",
    ),
)  # fmt: skip
