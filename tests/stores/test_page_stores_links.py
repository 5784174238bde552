"""Folders of the file store that are links: its own may be one, those inside may not."""

from pathlib import Path

import pytest
from page_files import open_store, page_file, read
from page_store_contract import KEYS, pages

from lifecycle.errors import StoreError


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    """Whoever runs the store may have its folder on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    store = open_store(tmp_path / "root")
    assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [True]
    assert read(open_store(tmp_path / "disk")).code is None
    assert read(open_store(tmp_path / "root")).code is None


@pytest.mark.parametrize("part", ["shard", "pool", "two digits", "temporary files"])
def test_a_folder_inside_that_is_a_link_is_refused_when_the_store_is_opened(tmp_path: Path, part: str) -> None:
    """A link that was planted below the root leads no read and no write out of it; the error names it and the way out."""
    root, away = tmp_path / "root", tmp_path / "away"
    open_store(root).write("kv", KEYS[:1], pages("kv", range(1)))
    digits = page_file(root).parent
    link = {
        "shard": root / "r0of2", "pool": digits.parent, "two digits": digits, "temporary files": root / "r0of2" / ".tmp",
    }[part]  # fmt: skip
    link.rename(away)
    link.symlink_to(away)
    before = sorted(away.rglob("*"))
    with pytest.raises(StoreError, match=f"cannot open the page store in {root}: {link} is a link.*replace it by a folder"):
        open_store(root)
    assert sorted(away.rglob("*")) == before


def test_links_with_names_of_no_folder_of_ours_do_not_stop_the_start(tmp_path: Path) -> None:
    """What is never looked at may be anything."""
    root = tmp_path / "root"
    open_store(root).write("kv", KEYS[:1], pages("kv", range(1)))
    (root / "README").symlink_to(tmp_path)
    (root / "r0of2" / "not a pool").symlink_to(tmp_path)
    (root / "r0of2" / "kv" / "README").symlink_to(tmp_path)
    assert read(open_store(root)).code is None
