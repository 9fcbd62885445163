"""Two files to linked rows, and how good the links are. For the steward, not for publication."""
