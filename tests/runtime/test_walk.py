"""Random commands, answers and delays on two or three ranks: replicas stay equal, the books balance, each effect is once.

The commands follow from the seed; the threads do not. A failing list is cut to the shortest that still fails.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from kit.rig import PAGE_TOKENS, Rig
from kit.store import page_of

from lifecycle.errors import DuplicateAttempt, UnknownRequest
from lifecycle.keys import KeyChain
from lifecycle.layout import PRESETS
from lifecycle.policies import BestEffort, OnShortfall, Pressure, Timeout, WaitComplete

Command = tuple[Any, ...]
STEPS = 70
PROMPTS = ("p", "q", "s")


def commands_of(seed: int, pools: list[str], ranks: int) -> list[Command]:
    """Return a list of commands; what differs between ranks names the rank."""
    dice = random.Random(seed)
    requests = [f"r{n}" for n in range(6)]
    out: list[Command] = []
    for _ in range(STEPS):
        request, rank, pool = dice.choice(requests), dice.randrange(ranks), dice.choice([*pools, ""])
        out.append(
            dice.choices(
                [
                    ("issue", request, dice.choice(PROMPTS), dice.randint(1, 14), dice.randint(0, 9)),
                    ("abort", request),
                    ("finish", request),
                    ("ready", request),
                    ("take_loaded", request),
                    ("tick", dice.randint(1, 4)),
                    ("hold", rank, pool),
                    ("let_go", rank, pool, dice.random() < 0.5),
                    ("open", rank),
                    ("say", rank, pool or "kv", dice.choice(PROMPTS), dice.randint(0, 13), dice.choice("1110sacil")),
                    ("show", rank, pool or "kv", dice.choice(PROMPTS), dice.randint(0, 13), dice.choice("1110")),
                    ("batch", rank, pool or "kv", dice.choice(["", "", "raise", "short", "long", "none", "bools"])),
                    ("query", rank, dice.choice(["", "", "", "", "raise", "short", "none", "lacking"])),
                    ("advance", dice.choice([0.1, 1.0, 3.0, 8.0, 25.0])),
                    ("memory down", rank, dice.randint(1, 3)),
                    ("match", dice.choice(PROMPTS)),
                    ("settle", 30),
                    ("adopt", request, dice.choice(PROMPTS), dice.randint(1, 14)),
                ],
                weights=[16, 3, 5, 4, 2, 20, 4, 5, 4, 4, 2, 2, 1, 3, 1, 4, 6, 3],
            )[0]
        )
    return out


def do(rig: Rig, command: Command) -> None:
    """Run one command, alike on all ranks; what may be refused is refused alike."""
    match command:
        case ("issue", request, prompt, pages, attempt):
            with suppress(DuplicateAttempt):
                rig.issue(request, pages, attempt, prompt)
        case ("abort" | "finish" | "take_loaded" as verb, request):
            try:
                getattr(rig, verb)(request)
            except UnknownRequest:
                assert request not in rig.ranks[0].book.replica.requests
        case ("ready", request):
            rig.ready(request)
        case ("tick", times):
            rig.tick(times)
        case ("hold", rank, pool):
            rig.stores[rank].hold(pool)
        case ("let_go", rank, pool, last):
            rig.stores[rank].let_go(pool, last=last)
        case ("open", rank):
            rig.stores[rank].open_all()
        case ("say", rank, pool, prompt, page, answer):
            rig.stores[rank].say(pool, answer, rig.prompt(prompt, 14), page)
        case ("show", rank, pool, prompt, page, flag):
            rig.stores[rank].show(pool, flag, rig.prompt(prompt, 14), page)
        case ("batch", rank, pool, how):
            rig.stores[rank].batch[pool] = how
        case ("query", rank, how):
            rig.stores[rank].query = how
        case ("advance", seconds):
            rig.clock.advance(seconds)
        case ("memory down", rank, times):
            rig.memories[rank].spy.down["release"] = times
        case ("match", prompt):
            rig.prompt(prompt, 14)
            rig.matched(prompt)
        case ("settle", times):
            for _ in range(times):
                rig.tick()
                with rig.stores[0].changed:
                    rig.stores[0].changed.wait(0.0002)
        case ("adopt", request, prompt, pages):
            for memory in rig.memories:  # a port that is down would refuse one rank what the budget allows all
                memory.spy.down.clear()
            rig.tick()
            adopt(rig, request, rig.prompt(prompt, pages))
        case _:
            raise AssertionError(f"no such command: {command}")


def adopt(rig: Rig, request: str, keys: KeyChain) -> None:
    """Let the engine write pages of a prompt on every rank."""

    def go(rank: int) -> int:
        def fill(pool: str, span: tuple[int, int], slots: Any) -> None:
            for page, buffer in zip(range(*span), rig.memories[rank].buffers(pool, slots), strict=True):
                buffer[:] = page_of(pool, keys[page], rank)
            rig.actives[rank].end()

        match = rig.indexes[rank].match(keys, rig.ranks[rank].tick_number)
        return rig.ranks[rank].adopt(request, keys, match.anchor, len(keys), fill)

    rig.same(go)


def build(seed: int, layout: str, ranks: int) -> Rig:
    """Return a rig with policies that follow from the seed."""
    dice = random.Random(-seed - 1)
    rig = Rig(
        layout,
        ranks,
        draft=dice.random() < 0.5,
        capacity=[dice.randint(14, 30) for _ in range(ranks)],
        readers=dice.randint(2, 4),
        stop=dice.choice([WaitComplete(), BestEffort(), Timeout(5, 0, 5), Timeout(0.5, 2, 9)]),
        pressure=dice.choice(list(Pressure)),
        shortfall=dice.choice(list(OnShortfall)),
        batch_pages=dice.randint(1, 6),
        row_capacity=dice.choice([2, 64]),
        mask_capacity=dice.choice([1, 8]),
        threshold_pages=dice.choice([1, 3]),
        limit_tokens=dice.choice([80, 200, 1 << 20]),
        max_pages=dice.choice([6, 64]),
        lost_read_s=20.0,
        max_lost_reads=1000,
        stuck_after_tries=2,
    )
    for place, name in enumerate(PROMPTS):  # they share their first five pages
        own = 10_000 * (1 + place)
        rig.add_prompt(name, [*range(5 * PAGE_TOKENS), *range(own, own + 9 * PAGE_TOKENS)])
    return rig


def play(seed: int, layout: str, ranks: int, commands: list[Command]) -> BaseException | None:
    """Run the commands and the tear-down; return what went wrong."""
    rig = build(seed, layout, ranks)
    try:
        for place, command in enumerate(commands):
            do(rig, command)
            if place % 10 == 9:
                rig.check()
        for store in rig.stores:
            store.batch.clear()
        rig.tear_down()
    except Exception as error:
        return error
    finally:
        for store in rig.stores:
            store.open_all()
        for coordinator in rig.ranks:
            coordinator.close(0)
    return None


def shortest(seed: int, commands: list[Command], fails: Callable[[list[Command]], bool]) -> list[Command]:
    """Drop commands, in halves, quarters and so on, for as long as what is left still fails."""
    size, tries = len(commands) // 2, 0
    while size and tries < 40:
        for first in range(0, len(commands), size):
            shorter = commands[:first] + commands[first + size :]
            tries += 1
            if fails(shorter):
                commands = shorter
                break
        else:
            size //= 2
    return commands


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("layout", PRESETS)
def test_a_walk_keeps_every_law(layout: str, ranks: int, seed: int) -> None:
    """Whatever happens in whatever order, the ranks agree and nothing is done twice or never."""
    seed = seed * 1000 + ranks
    pools = [pool.name for pool in PRESETS[layout](draft=True).pools]
    commands = commands_of(seed, pools, ranks)
    error = play(seed, layout, ranks, commands)
    if error is not None:
        least = shortest(seed, commands, lambda fewer: play(seed, layout, ranks, fewer) is not None)
        lines = "\n".join(map(repr, least))
        raise AssertionError(f"seed {seed}, {layout}, {ranks} ranks: {error!r}\nshortest failing list:\n{lines}") from error
