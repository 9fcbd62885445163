"""How the rows were linked, and what one person can change about it.

A linker hands over rows ``(x_i, z_i)``. The linked responses ``z`` are a permutation of the true responses ``y``, and row i carries
the response of row j with probability ``q_ij``. The three models say what the matrix ``Q`` is. For a given privacy unit each also says how
far ``Q`` and the links can differ between neighbours (:class:`LinkageExposure`). Sensitivities need to know nothing else about linkage.
"""

from dplinked.linkage.ele import ELE
from dplinked.linkage.exact import EXACT, Exact
from dplinked.linkage.floor import LinkageFloor
from dplinked.linkage.matching import Matching
from dplinked.linkage.unit import UNSTATED, LinkageExposure, PrivacyUnit

Linkage = Exact | ELE | Matching

__all__ = ["ELE", "EXACT", "UNSTATED", "Exact", "Linkage", "LinkageExposure", "LinkageFloor", "Matching", "PrivacyUnit"]
