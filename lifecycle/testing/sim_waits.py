"""The laws of waiting as checks of a simulated rank, from what its replica holds before and after each step."""

from collections.abc import Mapping

from lifecycle.testing.sim_checks import Violation
from lifecycle.testing.sim_rank import SimRank
from lifecycle.waiting import Waiter


class Line:
    """Follows one rank: nobody overtakes who waits for room, pace and bounds are kept."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank
        self._next_id = 1
        self._line: Mapping[str, Waiter] = {}

    def check(self, ticked: bool) -> None:
        """Check what the step did. `ticked`: it was a tick of a rank that nothing held up."""
        coordinator = self._rank.coordinator
        replica, retry, tick = coordinator.book.replica, coordinator._rank.policies.retry, coordinator.tick_number
        before, self._line = self._line, dict(replica.waiting.for_room)
        first_new, self._next_id = self._next_id, replica.next_id
        if retry is None:
            if replica.waiting:
                raise Violation("waiting", f"rank {self._rank.number}: somebody waits without the policy")
            return
        stayed = [who for who, waiter in before.items() if self._same(self._line.get(who), waiter)]
        if stayed != list(self._line)[: len(stayed)]:
            raise Violation("waiting", f"rank {self._rank.number}: {stayed} stood in line, now {list(self._line)}")
        ahead = list(before)[: list(before).index(stayed[0])] if stayed else None
        for id_ in range(first_new, replica.next_id):
            begun = replica.in_flight[id_].request
            if ahead is not None and begun not in ahead:
                raise Violation("overtaking", f"rank {self._rank.number}: {begun} began before {stayed[0]}")
        if len(replica.waiting) > retry.max_waiting:
            raise Violation("waiting", f"rank {self._rank.number}: {len(replica.waiting)} wait")
        for name, state in replica.requests.items():
            if state.queries > retry.max_queries:
                raise Violation("queries", f"rank {self._rank.number}: attempt {state.attempt} of {name}: {state.queries}")
        if ticked:
            late = [w for w in replica.waiting.to_ask.values() if w.due_tick <= tick]
            late += [w for w in replica.waiting.for_room.values() if tick - w.since_tick > retry.give_up_ticks]
            if late:
                raise Violation("pace", f"rank {self._rank.number}, tick {tick}: {late[0]}")

    @staticmethod
    def _same(now: Waiter | None, before: Waiter) -> bool:
        return now is not None and (now.attempt, now.since_tick) == (before.attempt, before.since_tick)
