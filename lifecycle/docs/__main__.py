"""`python -m lifecycle.docs` prints the diagrams and tables of the page on the house; `--write` puts them into it."""

import argparse
import os
import sys
from pathlib import Path

from lifecycle.docs.diagrams import PARTS
from lifecycle.errors import ConfigError

HOUSE = Path(__file__).with_name("house.md")


def fresh(text: str) -> str:
    """Return a page with what stands between its marks, `<!-- NAME -->` and `<!-- end -->`, printed afresh."""
    for name, part in PARTS.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n\n")
        old, end, after = rest.partition("<!-- end -->")
        if not (mark and end) or "<!--" in old:
            raise ConfigError(
                f"cannot print {name} into the page: it needs the lines <!-- {name} --> and <!-- end --> after it"
            )
        text = f"{before}{mark}{part()}\n\n{end}{after}"
    return text


def main(arguments: list[str] | None = None) -> int:
    """Print, or write into the page of this source tree, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lifecycle.docs", description=__doc__)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"what to print: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--write", action="store_true", help=f"put them into {HOUSE.name} instead of printing them")
    options = parser.parse_args(arguments)
    if options.write:
        HOUSE.write_text(fresh(HOUSE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    unknown = [name for name in options.part if name not in PARTS]
    if unknown:
        parser.error(f"cannot print {', '.join(unknown)}: there are {', '.join(PARTS)}")
    try:
        print("\n\n".join(PARTS[name]() for name in options.part or PARTS), flush=True)
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
