"""The page of `prefetch-audit report` in a real browser without a screen; skipped where none is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from logs import folder, renamed

from lifecycle.audit.cli import VIOLATED, main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), "")
MARK = "ran-in-the-browser"
REQUEST = f"</title></td><script>document.title='{MARK}'</script><img src=x onerror=document.title='{MARK}'><svg/onload=alert>"
# What a page of the same text looks like where it is not escaped: else nothing below could fail.
UNESCAPED = f"<!doctype html><title>t</title><table><td>{REQUEST}</table>"

pytestmark = pytest.mark.skipif(not BROWSER, reason="needs chromium or chrome")


def opened(page: Path, home: Path) -> str:
    """Return the document as it stands once a browser has loaded the page, in a network where no name resolves."""
    switches = ["--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"]
    done = subprocess.run(
        [BROWSER, *switches, f"--user-data-dir={home}", page.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def test_nothing_of_a_log_runs_in_the_page(tmp_path: Path) -> None:
    """A request id full of markup is text in the browser: no script ran, no element came of it, the violation is shown."""
    logs = tmp_path / "logs"
    logs.mkdir()
    page = tmp_path / "page.html"
    assert main(["report", folder(logs, renamed(REQUEST)), "-o", str(page)]) == VIOLATED
    document = opened(page, tmp_path / "home")
    assert "<title>Prefetch audit</title>" in document
    assert not re.search(r"<(script|img|iframe|link)\b|<[^>]*\son\w+=", document)
    assert "&lt;script&gt;" in document, "told as text"
    assert document.count("<svg") >= 2, "occupancy and the prefetches over time are drawn"


def test_the_browser_would_run_it(tmp_path: Path) -> None:
    """The same id unescaped does run, so that the test above can fail."""
    page = tmp_path / "page.html"
    page.write_text(UNESCAPED)
    assert f"<title>{MARK}</title>" in opened(page, tmp_path / "home")
