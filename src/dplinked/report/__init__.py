"""Releases as people read them."""
