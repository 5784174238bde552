"""The garbled output in miniature."""

from pathlib import Path

import pytest

import garbled_output


def test_the_old_rule_garbles_and_the_audit_names_page_pool_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """The old rule serves one garbled page; the verdict names request, page, pool and rule; the right rule serves none."""
    assert garbled_output.main() == 0
    out = capsys.readouterr().out
    assert "7 pages of request-2 served; garbled: page 4 of indexer of request-2" in out
    verdict = next(line for line in out.splitlines() if line.startswith("verdict"))
    assert "GARBLED - request-2 was served page 4 of indexer on rank 0" in verdict
    assert "missing" in verdict
    assert "rule clamp" in verdict
    assert "4 pages of request-2 served; garbled: none" in out
    assert "run right-rule: rank 0: no violations" in out


def test_the_old_rule_is_gone_after_the_example(tmp_path: Path) -> None:
    """Nothing of the patch is left in the library."""
    with garbled_output.old_counting_rule():
        pass
    assert garbled_output.serve_two(tmp_path, "after") == (4, [])
