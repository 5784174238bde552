"""Everything that keeps bytes: event logs, page stores, host memory, the prefix index."""
