"""Checks of the data before a release, for the steward. NOT FOR PUBLICATION: rows are read without noise."""

from dplinked.check.clipping import ClippingBias, foresee_clipping
from dplinked.check.findings import WARNING, Finding
from dplinked.check.study import Check, check_study

__all__ = ["WARNING", "Check", "ClippingBias", "Finding", "check_study", "foresee_clipping"]
