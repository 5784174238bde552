"""Looking at engines that have a prefetch lifecycle of their own: recorders that turn what happens there into our events."""
