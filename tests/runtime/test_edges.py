"""What a caller or a store can get wrong: refused or coded, and nothing else changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kit.rig import Rig

from lifecycle import events as ev
from lifecycle.codec import decode, encode
from lifecycle.errors import BadRequest, LayoutError, SyncFailed
from lifecycle.layout import AllPages, Layout, Need, Pool
from lifecycle.reasons import ReadCode, Reason
from lifecycle.runtime.ports import PageResult

RigOf = Callable[..., Rig]


@pytest.mark.parametrize(
    ("request_id", "attempt"),
    [("\ud800", 0), (7, 0), (None, 0), (("r",), 0), ("r", 2**64), ("r", -1), ("r", "1"), ("r", 1.5), ("r", True), ("r", None)],
)
def test_a_name_that_cannot_be_logged_is_refused_and_changes_nothing(rig_of: RigOf, request_id: Any, attempt: Any) -> None:
    """Neither state nor log move, and the coordinator goes on."""
    rig = rig_of("dsa", 2)
    before = [(len(list(log.records())), rank.book.replica.facts()) for log, rank in zip(rig.logs, rig.ranks, strict=True)]
    rig.prompt("p", 4)
    with pytest.raises(BadRequest):
        rig.issue(request_id, 4, attempt, prompt="p")
    after = [(len(list(log.records())), rank.book.replica.facts()) for log, rank in zip(rig.logs, rig.ranks, strict=True)]
    assert after == before
    assert isinstance(rig.run("r", 4), ev.Committed)


class _Odd(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no such thing")


@pytest.mark.parametrize("answer", [{"kv": [[True], [True, True]]}, _Odd(kv=1), {"kv": "no"}, None, [True], {"kv": [True] * 3}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_existence_answer_that_is_none_means_not_known(rig_of: RigOf, ranks: int, answer: Any) -> None:
    """The tick does not raise: the prefetch ends as one whose query failed."""
    rig = rig_of("kv_only", ranks)
    rig.stores[0].restorable = lambda keys, pools: answer  # type: ignore[method-assign]
    end = rig.run()
    assert isinstance(end, ev.Discarded)
    assert end.reason is Reason.QUERY_FAILED


class _Raises(list[PageResult]):
    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("no such thing")

    def __iter__(self) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (PageResult(0, "gone"), ReadCode.BAD_RESULT),  # type: ignore[arg-type]
        (PageResult(0, False), ReadCode.BAD_RESULT),  # type: ignore[arg-type]
        (PageResult(-5), ReadCode.SHORT),
        ("ok", ReadCode.BAD_RESULT),
    ],
)
def test_a_result_that_is_none_becomes_a_code_that_the_log_can_hold(rig_of: RigOf, result: Any, code: ReadCode) -> None:
    """Every record decodes again."""
    rig = rig_of("kv_only")
    read = rig.stores[0].read_into
    rig.stores[0].read_into = lambda *asked: [result] * len(read(*asked))  # type: ignore[method-assign]
    end = rig.run()
    assert isinstance(end, ev.Discarded)
    assert {event.code for event in rig.events(ev.ReadFailed)} == {code}
    for record in rig.logs[0].records():
        assert decode(encode(record)) == record


@pytest.mark.parametrize("answer", [_Raises([PageResult(8)] * 8), [PageResult(np.zeros(3))] * 8])  # type: ignore[arg-type]
def test_a_reader_survives_what_a_store_answers(rig_of: RigOf, answer: Any) -> None:
    """The pages failed with an io error; the next prefetch is read by the same reader."""
    rig = rig_of("kv_only", readers=1)
    read = rig.stores[0].read_into
    rig.stores[0].read_into = lambda *asked: answer if read(*asked) else None  # type: ignore[method-assign]
    assert rig.run("bad").reason is Reason.READ_FAILED  # type: ignore[union-attr]
    rig.stores[0].read_into = read  # type: ignore[method-assign]
    assert isinstance(rig.run("good"), ev.Committed)


def test_checksums_of_any_whole_number_type_are_kept(rig_of: RigOf) -> None:
    """numpy's numbers become Python's, so that the record can be encoded."""
    rig = rig_of("kv_only")
    read = rig.stores[0].read_into

    def with_checksums(pool: str, keys: Any, buffers: Any) -> Any:
        return [result._replace(checksum=np.uint64(2**63)) for result in read(pool, keys, buffers)]

    rig.stores[0].read_into = with_checksums  # type: ignore[method-assign]
    assert isinstance(rig.run(), ev.Committed)
    assert {value for event in rig.events(ev.PagesLanded) for value in event.checksums or ()} == {2**63}
    assert all(decode(encode(record)) == record for record in rig.logs[0].records())


def test_an_adoption_leaves_an_optional_pool_out_where_its_room_is_short(rig_of: RigOf) -> None:
    """The target's pages are taken whole, and the draft covers none of them."""
    layout = Layout("own_draft", (Pool("kv"), Pool("draft", need=Need.OPTIONAL)))
    rig = rig_of(layout, 2, capacity={"kv": 32, "draft": 4})
    keys = rig.prompt("r", 16)
    filled: list[str] = []

    def adopt(rank: int) -> int:
        anchor = rig.indexes[rank].match(keys, rig.ranks[rank].tick_number).anchor
        return rig.ranks[rank].adopt("r", keys, anchor, 16, lambda pool, pages, slots: filled.append(pool))

    assert rig.same(adopt) == 16
    assert set(filled) == {"kv"}
    assert rig.covered("draft") == []


def test_an_adoption_that_fails_on_one_rank_fails_the_round_of_all(rig_of: RigOf) -> None:
    """It is a local failure: no rank goes on with an index of its own, and the cause is said."""
    rig = rig_of("kv_only", 2)
    keys = rig.prompt("r", 4)

    def fill(rank: int) -> Callable[..., None]:
        def write(pool: str, pages: Any, slots: Any) -> None:
            if rank == 1:
                raise RuntimeError("the copy failed")

        return write

    for rank in range(2):
        anchor = rig.indexes[rank].match(keys, rig.ranks[rank].tick_number).anchor
        assert rig.ranks[rank].adopt("r", keys, anchor, 4, fill(rank)) == (4 if rank == 0 else 0)
    rig.unequal = True
    with pytest.raises(SyncFailed, match="error of"):
        rig.tick()


@pytest.mark.parametrize(
    "pool",
    [Pool("kv", need="required"), Pool("kv", coverage=AllPages), Pool(5), "kv"],  # type: ignore[arg-type]
)
def test_a_declaration_of_the_wrong_type_is_refused(pool: Any) -> None:
    """A plain word is not the member, and a class is not a coverage."""
    with pytest.raises(LayoutError):
        Layout("odd", (pool,))
