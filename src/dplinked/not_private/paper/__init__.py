"""The paper's experiments as they were run. Functions whose names end in ``_not_private`` read the data without paying for it.

[LPK24] Shurong Lin, Elliot Paquette, Eric D. Kolaczyk, *Differentially Private Linear Regression with
Linked Data*, Harvard Data Science Review, 2024.
"""

from dplinked.not_private.paper.algorithms import (
    Constants,
    constants_not_private,
    ngd_not_private,
    ssp_not_private,
)
from dplinked.not_private.paper.variances import (
    ngd_bias_not_private,
    ngd_excess_error,
    ngd_variance_not_private,
    ssp_excess_error,
    ssp_variance_not_private,
)

__all__ = [
    "Constants",
    "constants_not_private",
    "ngd_bias_not_private",
    "ngd_excess_error",
    "ngd_not_private",
    "ngd_variance_not_private",
    "ssp_excess_error",
    "ssp_not_private",
    "ssp_variance_not_private",
]
