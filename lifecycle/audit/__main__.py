"""`python -m lifecycle.audit COMMAND LOG...`, which is `prefetch-audit`."""

import sys

from lifecycle.audit.cli import main

if __name__ == "__main__":
    sys.exit(main())
