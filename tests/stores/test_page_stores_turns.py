"""Reads of small pages take turns while that pays, and nobody waits for ever."""

import threading

import pytest

from stores.pages.batches import Batches, Turns

MODULE = "stores.pages.batches"


def at_once(turns: Turns, patience_s: float) -> bool:
    """Have two threads read a part each; return whether both were at it at the same time."""
    both, met = threading.Barrier(2), []

    def work(start: int, stop: int) -> None:
        try:
            both.wait(patience_s)
        except threading.BrokenBarrierError:
            return
        met.append(start)

    threads = [threading.Thread(target=turns.take, args=(work, place, place + 1)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(met) == 2


def test_quick_parts_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While parts are quick, the second caller waits for the first one."""
    monkeypatch.setattr(f"{MODULE}._QUICK_S", 1e9)
    monkeypatch.setattr(f"{MODULE}._WAIT_S", 30)
    assert not at_once(Turns(), 0.2)


def test_parts_that_take_long_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a part has waited for a device, nobody waits for a turn."""
    monkeypatch.setattr(f"{MODULE}._QUICK_S", -1.0)
    monkeypatch.setattr(f"{MODULE}._WAIT_S", 30)
    turns = Turns()
    turns.take(lambda start, stop: None, 0, 1)
    assert at_once(turns, 30)


def test_a_read_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait once, a few milliseconds, then take no turns until it is back."""
    monkeypatch.setattr(f"{MODULE}._QUICK_S", 1e9)
    turns, begun, gate = Turns(), threading.Event(), threading.Event()

    def hang(start: int, stop: int) -> None:
        begun.set()
        gate.wait()

    stuck = threading.Thread(target=turns.take, args=(hang, 0, 1))
    stuck.start()
    try:
        assert begun.wait(30)
        done: list[int] = []
        turns.take(lambda start, stop: done.append(start), 0, 1)
        monkeypatch.setattr(f"{MODULE}._WAIT_S", 3600)
        for place in range(1, 50):
            turns.take(lambda start, stop: done.append(start), place, place + 1)
        assert done == list(range(50))
        assert stuck.is_alive()
    finally:
        gate.set()
        stuck.join()
    assert not at_once(turns, 0.2)


def test_an_error_gives_the_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the work raises reaches the caller, and the next one has its turn."""
    monkeypatch.setattr(f"{MODULE}._QUICK_S", 1e9)
    monkeypatch.setattr(f"{MODULE}._WAIT_S", 3600)
    turns, done = Turns(), []

    def fail(start: int, stop: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        turns.take(fail, 0, 1)
    turns.take(lambda start, stop: done.append(start), 0, 1)
    assert done == [0]


@pytest.mark.parametrize("page_bytes", [1, 4096, 128 << 10, 1 << 20, 64 << 20])
@pytest.mark.parametrize("pages", [0, 1, 15, 16, 17, 128])
def test_every_page_of_a_batch_is_read_once(page_bytes: int, pages: int) -> None:
    """Whatever the size of a page, the parts are the batch."""
    batches, done = Batches(1), list[int]()
    batches.run(lambda start, stop: done.extend(range(start, stop)), pages, page_bytes)
    assert sorted(done) == list(range(pages))
    batches.close()
