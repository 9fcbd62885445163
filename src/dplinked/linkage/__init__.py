"""How the rows were linked, and what one person can change about it."""

from dplinked.linkage.matching import Matching
from dplinked.linkage.model import ELE, Exact, Linkage
from dplinked.linkage.unit import UNSTATED, LinkageExposure, PrivacyUnit

__all__ = ["ELE", "UNSTATED", "Exact", "Linkage", "LinkageExposure", "Matching", "PrivacyUnit"]
