"""The library's version, as installed; equal on all ranks, and written into every log."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("prefetch-lifecycle")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0+source"
