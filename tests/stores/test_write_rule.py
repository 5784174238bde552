"""Which pages of a chain are due: the rule against a model that tries every length."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.errors import ConfigError
from lifecycle.layout import PRESETS, AllPages, Layout, Need, Pool, TrailingPages, dsa, kv_only, swa
from stores.pages import due_pages

Flags = Mapping[str, list[bool]]
LAYOUTS = [build(draft=draft) for build in PRESETS.values() for draft in (False, True)]
LAYOUTS.append(Layout("late", (Pool("swa", TrailingPages(2)), Pool("rider", TrailingPages(1), rides_on="swa"), Pool("kv"))))


def due(layout: Layout, there: Flags, held: Flags, degrade: bool = False) -> dict[str, list[int]]:
    """Return the pages that are due, as lists."""
    there_, held_ = ({pool: np.array(line, np.bool_) for pool, line in lines.items()} for lines in (there, held))
    found = due_pages(layout, there_, held_, degrade)
    return {pool: pages.tolist() for pool, pages in found.items()}


def flags(text: str) -> list[bool]:
    """Return one flag for each letter: x or a dot."""
    return [letter == "x" for letter in text]


@pytest.mark.parametrize(
    ("there", "held", "expected"),
    [
        ("....", "xxxx", [0, 1, 2, 3]),
        (".xxx", "xxxx", [0]),  # the head is never skipped
        ("x.x.", "xxxx", [1, 3]),
        ("xxxx", "xxxx", []),
        ("....", ".xxx", []),  # nobody has the head: nothing behind it could be restored
        ("....", "xx.x", [0, 1]),
        ("..x.", "xx.x", [0, 1, 3]),
    ],
)
def test_pages_are_due_in_chain_order_as_far_as_a_prefix_can_be_restored(there: str, held: str, expected: list[int]) -> None:
    """What is held and not there is due, up to the first page that neither has."""
    assert due(kv_only(), {"kv": flags(there)}, {"kv": flags(held)}) == {"kv": expected}


def test_a_sidecar_that_neither_has_ends_what_is_due_of_kv() -> None:
    """Where the indexer stops, kv behind it is of no use."""
    held = {"kv": flags("xxxx"), "indexer": flags("xx.x")}
    nothing = {"kv": flags("...."), "indexer": flags("....")}
    assert due(dsa(), nothing, held) == {"kv": [0, 1], "indexer": [0, 1]}


def test_a_window_with_a_hole_is_not_due() -> None:
    """Of a trailing pool only whole windows are worth writing, each with the kv below it."""
    there = {"kv": flags("......"), "swa": flags("......")}
    held = {"kv": flags("xxxxxx"), "swa": flags("..xx.x")}
    assert due(swa(2), there, held) == {"kv": [0, 1, 2, 3], "swa": [2, 3]}
    assert due(swa(2), there, held, degrade=True) == {"kv": [0, 1, 2, 3, 4, 5], "swa": [2, 3]}


def model(layout: Layout, there: Flags, held: Flags, degrade: bool) -> dict[str, set[int]]:
    """Try every length: what it needs, where somebody has all of it; optional pools where they have their own share, too."""
    pages = len(there["kv"])
    wanted: dict[str, set[int]] = {pool.name: set() for pool in layout.pools}

    def covers(pool: Pool, end: int) -> bool:
        return all(there[pool.name][page] or held[pool.name][page] for page in range(*pool.window(0, end)))

    for end in range(1, pages + 1):
        if all(covers(pool, end) for pool in layout.required(degrade)):
            for pool in layout.pools:
                whole = isinstance(pool.coverage, AllPages) and pool.need is Need.OPTIONAL
                ends = [end] if not whole else range(1, end + 1)
                for shorter in ends:
                    if covers(pool, shorter):
                        wanted[pool.name].update(range(*pool.window(0, shorter)))
    return {name: {page for page in found if held[name][page] and not there[name][page]} for name, found in wanted.items()}


@given(data=st.data(), layout=st.sampled_from(LAYOUTS), pages=st.integers(0, 9), degrade=st.booleans())
def test_the_rule_is_that_of_a_model_that_tries_every_length(
    data: st.DataObject, layout: Layout, pages: int, degrade: bool
) -> None:
    """For any layout and whatever is there and held, the pages due are those that some length needs."""
    line = st.lists(st.sampled_from([True, True, True, False]), min_size=pages, max_size=pages)
    there, held = ({pool.name: data.draw(line) for pool in layout.pools} for _ in range(2))
    found = due(layout, there, held, degrade)
    assert {pool: set(numbers) for pool, numbers in found.items()} == model(layout, there, held, degrade)
    assert all(numbers == sorted(numbers) for numbers in found.values())


@pytest.mark.parametrize(("there", "held"), [({"kv": [True]}, {"kv": [True] * 2}), ({"kv": [True]}, {"swa": [True]})])
def test_flags_that_do_not_fit_are_refused(there: Flags, held: Flags) -> None:
    """One flag per page for each pool of the layout."""
    with pytest.raises(ConfigError, match="cannot say which pages are due"):
        due(kv_only(), there, held)
