"""Linked rows to private sums: one interface, and engines that do the work."""
