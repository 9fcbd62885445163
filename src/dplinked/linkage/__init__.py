"""How the rows were linked, and what one person can change about it.

A linker hands over rows ``(x_i, z_i)`` where ``z`` is a permutation of the true responses ``y`` and ``P(z_i = y_j) = q_ij``.
The three models say what ``Q`` is. Each also says, for a privacy unit, how far ``Q`` and the links can differ between
neighbours (:class:`LinkageExposure`), which is all that sensitivities need to know about linkage.
"""

from dplinked.linkage.ele import ELE
from dplinked.linkage.exact import Exact
from dplinked.linkage.matching import Matching
from dplinked.linkage.unit import UNSTATED, LinkageExposure, PrivacyUnit

Linkage = Exact | ELE | Matching

__all__ = ["ELE", "UNSTATED", "Exact", "Linkage", "LinkageExposure", "Matching", "PrivacyUnit"]
