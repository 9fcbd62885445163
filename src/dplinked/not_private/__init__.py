"""Baselines, the paper's experiments and simulated data. Nothing in this package is private, and nothing in it can make a release."""
