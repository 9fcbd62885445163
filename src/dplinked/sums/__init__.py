"""Linked rows to private sums: the only pass over data there is."""
