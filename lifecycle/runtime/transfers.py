"""The local side of reading: what was asked, which batches are out, and what their notes mean as events.

Lives on the scheduler's thread. Decides nothing: it turns notes into events and queues into withdrawals.
"""

from collections.abc import Callable, Mapping

import numpy as np

from lifecycle import coverage
from lifecycle import ranges as r
from lifecycle.coverage import Flags
from lifecycle.events import (
    Event,
    HitResolved,
    LateWriteEnded,
    PagesLanded,
    ReadClaimed,
    ReadEnded,
    ReadFailed,
    ReadLost,
    TransferStarted,
)  # fmt: skip
from lifecycle.layout import Layout
from lifecycle.local import UNKNOWN
from lifecycle.policies import Policies
from lifecycle.reasons import ReadCode, Reason
from lifecycle.runtime.jobs import Job, Landing, Note, Part
from lifecycle.runtime.overdue import Overdue
from lifecycle.runtime.readers import ReaderPool
from lifecycle.runtime.transfer import Transfer, reads_of
from lifecycle.states import State

Emit = Callable[[Event], None]


class Transfers:
    """All transfers of a rank, over its readers."""

    def __init__(
        self,
        layout: Layout,
        policies: Policies,
        page_bytes: Mapping[str, int],
        readers: ReaderPool,
        clock_ns: Callable[[], int],
        emit: Emit,
        absent: frozenset[str] = frozenset(),
    ) -> None:
        self._layout = layout
        self._absent = absent
        self._policies = policies
        self._page_bytes = page_bytes
        self._readers = readers
        self._clock_ns = clock_ns
        self._emit = emit
        self._claimed = Overdue()  # reads by time of claim
        self._asked = Overdue()  # queries by time of issue
        self._required = tuple(pool.name for pool in layout.required(policies.degrade) if pool.name not in absent)
        self._unsent: list[Job] = []  # reads of this tick's plans: queued all at once, under one lock
        self.of: dict[int, Transfer] = {}
        self.dirty: set[int] = set()  # what may have something new to say or to settle; never iterated unsorted
        self.lost_reads = 0
        self.hung_readers = 0  # how many readers are in a read that was given up as lost

    @property
    def declining(self) -> bool:
        """Whether so many readers hang that new prefetches make no sense; over once enough of them have come back."""
        return self.hung_readers > self._policies.max_lost_reads

    def ask(self, transfer: Transfer) -> None:
        """Ask this rank's shard of L3 what it has of the span."""
        shared = transfer.local.shared
        span = (shared.start_page, shared.end_page)
        job = Job(shared.id, "", span, (), transfer.keys, self._required)
        job.claimed_ns = transfer.progress.issued_ns
        transfer.query = job
        self._asked.watch(job)
        self._readers.queue.put([job])

    def start(self, transfer: Transfer) -> None:
        """Make the reads of the plan, which `send` queues."""
        self._land_absent(transfer)
        transfer.jobs = reads_of(transfer, self._layout, self._absent, self._policies.batch_pages)
        self._unsent += transfer.jobs
        self._note_progress(transfer)

    def send(self) -> None:
        """Hand the reads of the plans made since the last call to the readers."""
        if self._unsent:
            self._readers.queue.put(self._unsent)
            self._unsent = []

    def _land_absent(self, transfer: Transfer) -> None:
        """Count what this rank has no shard of as landed whole: the neutral value of a MIN."""
        shared = transfer.local.shared
        for name in sorted(self._absent - set(shared.left_out)):
            lo, hi = self._layout.pool(name).window(shared.start_page, shared.plan_page)
            self._emit(PagesLanded(shared.id, name, (lo, hi), 0))

    # --- notes ---------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Turn every note that is there into events, then look for reads that nobody will answer."""
        notes = self._readers.notes
        for _ in range(len(notes)):
            self._take_note(notes.popleft())
        self._find_lost()
        if self.declining:
            self.fail_unclaimed()

    def _take_note(self, note: Note) -> None:
        job = note.job
        if job.hung and note.kind == "end":  # its reader has come back after all
            job.hung = False
            self.hung_readers -= 1
        transfer = self.of.get(job.prefetch)
        if note.kind == "claim":
            self._claim(job, transfer)
        elif job.is_query:
            if note.kind == "part":
                job.ended = True
                if transfer is not None and transfer.query is job:
                    self._answer_query(transfer, note)
        elif not (job.lost or job.ended):  # an answer that comes twice counts once
            if note.kind == "part" and note.part is not None:
                if transfer is not None and note.part.pool not in job.heard:
                    job.heard += (note.part.pool,)
                    self._answer_part(transfer, note.part, note.landings)
            else:
                self._end(job, transfer)
        if transfer is not None:
            self.dirty.add(job.prefetch)

    def _claim(self, job: Job, transfer: Transfer | None) -> None:
        if job.is_query or job.claimed or transfer is None:
            return
        job.claimed = True
        self._claimed.watch(job)
        self._emit(ReadClaimed(job.prefetch, job.owner, job.pages))
        if transfer.progress.started_ns is None:
            transfer.progress.started_ns = job.claimed_ns
            self._emit(TransferStarted(job.prefetch, job.claimed_ns - transfer.progress.issued_ns))

    def _answer_query(self, transfer: Transfer, note: Note) -> None:
        shared = transfer.local.shared
        if shared.state is not State.ISSUED or transfer.local.hit_page != UNKNOWN:
            return
        span_pages = shared.end_page - shared.start_page
        if note.present is None:
            self._no_answer(transfer)
            return
        present = dict(note.present)
        leading = {pool: coverage.leading_run(flags) for pool, flags in present.items()}
        for pool in self._absent:  # no shard here: nothing of it can be missing
            present[pool] = np.ones(span_pages, dtype=np.bool_)
        lengths = coverage.restorable(self._layout, self._policies.degrade, present)
        hit_pages = coverage.longest(lengths, 0)
        self._resolve(transfer, lengths, leading, coverage.miss_reason(present, hit_pages, self._policies.threshold_pages))

    def _no_answer(self, transfer: Transfer) -> None:
        shared = transfer.local.shared
        nothing = np.zeros(shared.end_page - shared.start_page, dtype=np.bool_)
        self._resolve(transfer, nothing, {}, Reason.QUERY_FAILED)

    def _resolve(self, transfer: Transfer, lengths: Flags, leading: dict[str, int], miss: Reason | None) -> None:
        transfer.lengths = lengths
        hit_page = coverage.longest(lengths, transfer.local.shared.start_page)
        self._emit(HitResolved(transfer.local.shared.id, hit_page, leading, miss))
        self.dirty.add(transfer.local.shared.id)

    def _answer_part(self, transfer: Transfer, part: Part, landings: tuple[Landing, ...]) -> None:
        shared = transfer.local.shared
        if shared.state is not State.TRANSFERRING:
            return  # counters are frozen: a late answer discharges at its end, and does nothing else
        for pages, code, checksums in landings:
            if code is None:
                nbytes = (pages[1] - pages[0]) * self._page_bytes[part.pool]
                self._emit(PagesLanded(shared.id, part.pool, pages, nbytes, checksums))
            else:
                self._emit(ReadFailed(shared.id, part.pool, pages, code))

    def _end(self, job: Job, transfer: Transfer | None) -> None:
        job.ended = True
        if transfer is None:
            return
        if not job.claimed:
            self._claim(job, transfer)
        self._emit(ReadEnded(job.prefetch, job.owner, job.pages))
        self._end_late(transfer, job, lost=False)
        self._note_progress(transfer)

    def _end_late(self, transfer: Transfer, job: Job, lost: bool) -> None:
        late = r.intersect(transfer.local.obligations.late.get(job.owner, r.EMPTY), (job.pages,))
        if late:
            self._emit(LateWriteEnded(job.prefetch, job.owner, late, lost))

    def _note_progress(self, transfer: Transfer) -> None:
        shared = transfer.local.shared
        if shared.state is not State.TRANSFERRING:
            return
        ceiling = min(transfer.local.ceiling(), shared.ceiling_page)
        if ceiling < shared.plan_page:
            self._withdraw(transfer, ceiling)
        progress = transfer.progress
        progress.all_answered = not progress.reserve_failed and all(
            job.ended or job.lost or job.pages[0] >= ceiling
            for job in reversed(transfer.jobs)  # the last is answered last, nearly always: one look for each answer
        )

    # --- withdrawing and losing ----------------------------------------------------------------------------------------

    def cap(self, transfer: Transfer) -> None:
        """Withdraw what lies beyond the agreed ceiling."""
        self._note_progress(transfer)

    def stop(self, transfer: Transfer) -> None:
        """Withdraw every unclaimed read, and have claimed ones read nothing more."""
        self._withdraw(transfer, -1)
        for job in transfer.jobs:
            job.stopped = True

    def _withdraw(self, transfer: Transfer, from_page: int) -> None:
        jobs = [job for job in transfer.jobs if not (job.ended or job.claimed) and job.pages[0] >= from_page]
        query = transfer.query
        if not jobs and (query is None or query.ended):
            return  # nearly always, and it spares the lock
        self.send()
        for job in self._readers.queue.withdraw(transfer.local.shared.id, from_page):
            job.ended = True
        for job in jobs:  # what was not there to take back is claimed, whether or not its note has come
            if not job.ended:
                self._claim(job, transfer)

    def _find_lost(self) -> None:
        before_ns = self._clock_ns() - self._policies.lost_read_ns
        for query in self._asked.since(before_ns):
            self._lose_query(query)
        for job in self._claimed.since(before_ns):
            self._lose_read(job)

    def _lose_query(self, job: Job) -> None:
        transfer = self.of.get(job.prefetch)
        waits = transfer is not None and transfer.local.shared.state is State.ISSUED
        job.ended = waits and bool(self._readers.queue.withdraw(job.prefetch))
        if transfer is not None and waits:
            self._no_answer(transfer)
        if not job.ended:  # a reader hangs in it, whether or not anybody still waits for the answer
            self._readers.queue.done(job)
            self._replace_reader(job)

    def _lose_read(self, job: Job) -> None:
        transfer = self.of[job.prefetch]  # not closed while a claimed read is neither answered nor lost
        job.lost = job.stopped = True
        self._readers.queue.done(job)
        self._emit(ReadLost(job.prefetch, job.owner, job.pages))
        self._end_late(transfer, job, lost=True)
        self._note_progress(transfer)
        self.dirty.add(job.prefetch)
        self._replace_reader(job)

    def give_up(self, transfer: Transfer) -> None:
        """Treat every claimed read that is still out as lost: nobody will drain its answer any more."""
        for job in transfer.jobs:
            if job.claimed and not (job.ended or job.lost):
                job.lost = job.stopped = True
                self._emit(ReadLost(job.prefetch, job.owner, job.pages))
                self._end_late(transfer, job, lost=True)
        self.dirty.add(transfer.local.shared.id)

    def _replace_reader(self, job: Job) -> None:
        self.lost_reads += 1
        self.hung_readers += 1
        job.hung = True
        if not self.declining:
            job.replaced = True
            self._readers.add()

    def fail_unclaimed(self) -> None:
        """Fail what no reader may ever claim: called while readers are not replaced any more."""
        self.send()
        failed: set[int] = set()
        for job in self._readers.queue.withdraw_all():
            job.ended = True
            id_, transfer = job.prefetch, self.of[job.prefetch]
            failed.add(id_)
            if job.is_query:
                self._no_answer(transfer)
            elif transfer.local.shared.state is State.TRANSFERRING:
                for part in job.parts:
                    self._emit(ReadFailed(id_, part.pool, part.pages, ReadCode.IO_ERROR))
        self.dirty |= failed
        for id_ in sorted(failed):
            self._note_progress(self.of[id_])
