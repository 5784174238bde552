"""Page keys: the published digests, and what is refused."""

import struct
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.errors import BadKey, BadTokens
from lifecycle.keys import EMPTY_NAMESPACE, KeyChain, Namespace, check_key, page_count, page_keys

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
SIZES = st.integers(1, 9)
KEY = "0123456789abcdef" * 4


def slow_keys(tokens: list[int], page_size: int, bigram: bool, seed: bytes = b"") -> list[str]:
    """Hash one id at a time, as the definition reads."""
    units = [struct.pack("<II", a, b) for a, b in pairwise(tokens)]
    units = units if bigram else [struct.pack("<I", t) for t in tokens]
    keys: list[str] = []
    while len(units) >= page_size:
        hasher = sha256(seed)
        for unit in units[:page_size]:
            hasher.update(unit)
        seed, units = hasher.digest(), units[page_size:]
        keys.append(seed.hex())
    return keys


def test_published_digests_of_a_chain() -> None:
    """Tokens 1000..1007 in pages of 4 have the two keys that other implementations compute."""
    assert page_keys(range(1000, 1008), 4) == (
        "1d533aec2cd826f8f398589c20e169718d95dc7b123918889d58e0d09b7960c7",
        "2be5b730d7617a19b1b69dac4c2006c6e7bfd529c18f7580d47ab872f44b17bb",
    )


def test_published_digest_of_bigrams() -> None:
    """The pairs (1,2),(2,3) as one page have the key that other implementations compute."""
    digest = "ede8ef26a097f0fd889f9f39f6f5af921370630b164c4a4fa28eb716b2df9269"
    assert page_keys([1, 2, 3], 2, bigram=True) == (digest,)


@settings(deadline=None, max_examples=200)
@given(IDS, SIZES, st.booleans())
def test_keys_are_those_of_the_definition(tokens: list[int], page_size: int, bigram: bool) -> None:
    """Hashing whole pages gives what hashing id by id gives, and one key per whole page."""
    keys = page_keys(tokens, page_size, bigram=bigram)
    assert list(keys) == slow_keys(tokens, page_size, bigram)
    assert len(keys) == page_count(len(tokens), page_size, bigram)


@settings(deadline=None, max_examples=100)
@given(IDS, SIZES, st.booleans(), st.integers(0, 40))
def test_keys_of_a_prefix_are_a_prefix_of_the_keys(tokens: list[int], size: int, bigram: bool, cut: int) -> None:
    """What is read for a longer prompt was written under the same keys for a shorter one."""
    short = page_keys(tokens[:cut], size, bigram=bigram)
    assert page_keys(tokens, size, bigram=bigram)[: len(short)] == short


def test_a_changed_token_changes_every_later_key() -> None:
    """A key stands for everything before it too: the same page after another prefix is another page."""
    one, two = page_keys([1, 2, 3, 4, 5, 6], 2), page_keys([1, 2, 9, 4, 5, 6], 2)
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert one[2] != two[2]


@pytest.mark.parametrize("tokens", [[1, 2, 3, 4], (1, 2, 3, 4), range(1, 5)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int32, np.int64, np.uint64, ">u4"])
def test_keys_do_not_depend_on_how_ids_are_held(tokens: object, dtype: object) -> None:
    """Lists, ranges and arrays of any whole type and byte order give the same keys."""
    assert page_keys(np.array(tokens, dtype=dtype), 2) == page_keys(tokens, 2)  # type: ignore[call-overload, arg-type]


def test_keys_of_a_strided_view_are_those_of_its_values() -> None:
    """An array that is not contiguous is hashed by value, not by memory."""
    assert page_keys(np.arange(8, dtype=np.uint32)[::2], 2) == page_keys([0, 2, 4, 6], 2)


@pytest.mark.parametrize(
    ("tokens", "page_size", "bigram", "pages"),
    [
        (0, 4, False, 0),
        (0, 4, True, 0),
        (1, 1, True, 0),
        (7, 4, False, 1),
        (8, 4, False, 2),
        (8, 4, True, 1),
        (9, 4, True, 2),
    ],
)
def test_bigram_prompts_have_one_key_less_than_tokens(tokens: int, page_size: int, bigram: bool, pages: int) -> None:
    """N tokens make N - 1 pairs, so a prompt of exactly two pages has one bigram page."""
    assert page_count(tokens, page_size, bigram) == pages
    assert len(page_keys(range(tokens), page_size, bigram=bigram)) == pages


def test_bigram_keys_never_meet_token_keys() -> None:
    """A reader with token keys finds nothing that a bigram writer wrote (hits of 0 across engines)."""
    tokens = list(range(64))
    assert not set(page_keys(tokens, 4)) & set(page_keys(tokens, 4, bigram=True))


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_empty_namespace_is_no_namespace() -> None:
    """Without a namespace the chain begins with the first page."""
    assert EMPTY_NAMESPACE.digest() == b""
    assert page_keys(range(8), 4, namespace=Namespace()) == page_keys(range(8), 4)


def test_namespace_stands_for_the_page_before_page_0() -> None:
    """A namespace digest seeds the chain like the key of an earlier page."""
    space = Namespace(model="m", dtype="bf16")
    assert list(page_keys(range(8), 4, namespace=space)) == slow_keys(list(range(8)), 4, False, space.digest())


@pytest.mark.parametrize("field", ["model", "adapter", "salt", "weights_version", "dtype", "layout"])
def test_every_field_of_a_namespace_parts_the_keys(field: str) -> None:
    """Pages of another model, adapter, salt, version, type or layout have other keys."""
    plain = Namespace(model="m", adapter="a", salt="s", weights_version="1", dtype="bf16", layout="dsa")
    values = {name: getattr(plain, name) for name in plain.__slots__}
    other = Namespace(**{**values, field: values[field] + "x"})
    assert not set(page_keys(range(8), 4, namespace=plain)) & set(page_keys(range(8), 4, namespace=other))


def test_namespace_fields_do_not_run_together() -> None:
    """Moving letters or whole values between fields makes another namespace."""
    spaces = [
        Namespace("ab", "c"), Namespace("a", "bc"), Namespace("abc"), Namespace("", "abc"), Namespace("", "", "abc"),
        Namespace("a\x01\x00\x00\x00b"),
    ]  # fmt: skip
    assert len({space.digest() for space in spaces}) == len(spaces)


def test_namespace_takes_a_path_that_is_not_utf8() -> None:
    """A model path with undecodable bytes has a digest of its own."""
    odd, odder = (bytes([0x6D, byte]).decode("utf-8", "surrogateescape") for byte in (0xFF, 0xFE))
    assert len({Namespace(odd).digest(), Namespace(odder).digest(), Namespace("m").digest()}) == 3


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "at"),
    [([5, -1], 1), ([2**32], 0), ([0, 1, 2**32 + 7], 2), (np.array([3, -9], dtype=np.int64), 1), ([1, 2, 3, 4, -5], 4)],
)
@pytest.mark.parametrize("bigram", [False, True])
def test_id_beyond_32_bits_is_refused_by_place(tokens: list[int], at: int, bigram: bool) -> None:
    """An id that does not fit is never cut to 32 bits, even in the part that fills no page."""
    with pytest.raises(BadTokens, match=f"token {at}: id {int(tokens[at])} does not fit"):
        page_keys(tokens, 4, bigram=bigram)


def test_largest_id_is_taken() -> None:
    """The bounds themselves are legal."""
    assert list(page_keys([0, 2**32 - 1], 2)) == slow_keys([0, 2**32 - 1], 2, False)


@pytest.mark.parametrize(
    "tokens",
    [[1.0, 2.0], [1, 2.5], [float("nan")], [True, False], ["1", "2"], "1234", [None], [[1, 2], [3, 4]], [[1], [2, 3]],
     [2**70], [-1, 2**63], np.array([1.0]), b"ab"],
)  # fmt: skip
def test_tokens_that_are_no_flat_list_of_whole_numbers_are_refused(tokens: list[int]) -> None:
    """Floats, booleans, text, nested lists and huge numbers are refused, never converted."""
    with pytest.raises(BadTokens, match="need a flat list of whole numbers"):
        page_keys(tokens, 1)


@pytest.mark.parametrize("page_size", [0, -1, 2.0, float("nan"), "4", None])
@pytest.mark.parametrize("call", [lambda size: page_count(8, size), lambda size: page_keys([], size)])
def test_page_size_must_be_a_whole_number_from_1(call: Callable[[object], object], page_size: object) -> None:
    """A page size that makes no pages is refused even for an empty prompt."""
    with pytest.raises(BadTokens, match="use a whole page size of at least 1"):
        call(page_size)


HOSTILE = {
    "empty": "", "path": "../../etc/passwd", "absolute": "/etc/passwd", "upper case": KEY.upper(), "short": KEY[:-1],
    "long": KEY + "0", "newline": KEY + "\n", "nul": KEY[:-1] + "\0", "other digits": "٠" * 64, "space": " " + KEY[1:],
    "not hex": "g" * 64, "bytes": KEY.encode(), "none": None, "number": int(KEY, 16), "surrogate": "\ud800" * 64,
    "list": list(KEY), "prefix": "0x" + KEY[2:],
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_key_is_refused(case: str) -> None:
    """Only 64 lower-case hex digits are a key; nothing else reaches a file name or a store."""
    with pytest.raises(BadKey, match="a page key is 64 lower-case hex digits"):
        check_key(HOSTILE[case])  # type: ignore[arg-type]
    with pytest.raises(BadKey) as caught:
        KeyChain([KEY, HOSTILE[case], KEY])  # type: ignore[list-item]
    assert caught.value.page == 1
    assert "of page 1" in str(caught.value)


def test_refusal_of_a_huge_key_stays_short() -> None:
    """A megabyte offered as a key does not become a megabyte of message."""
    with pytest.raises(BadKey) as caught:
        check_key("x" * 1_000_000)
    assert len(str(caught.value)) < 300


def test_key_chain_checks_once_and_is_a_tuple() -> None:
    """A chain is its keys; what is one already is not built again."""
    chain = page_keys(range(8), 4)
    assert isinstance(chain, KeyChain)
    assert KeyChain(chain) is chain
    assert KeyChain(list(chain)) == chain == tuple(chain)
    assert KeyChain() == ()


def test_key_chain_of_a_generator_keeps_its_keys() -> None:
    """Keys that can be read only once are all kept."""
    chain = page_keys(range(8), 4)
    assert KeyChain(key for key in chain) == chain


def test_key_chain_refuses_a_single_string() -> None:
    """One key where a list of keys belongs is an error, not 64 keys."""
    with pytest.raises(BadKey):
        KeyChain(KEY)
