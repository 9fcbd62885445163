"""Baselines, the paper's experiments and simulated data. Nothing here is private, and nothing here can make a release."""
