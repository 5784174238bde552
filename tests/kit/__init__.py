"""A rig of in-process ranks with stores that answer as told, ports that fail as told, and books kept beside them."""
