"""The paper's algorithms, variances and bounds to the letter. Names ending in ``_not_private`` read the data unpaid."""

from dplinked.not_private.paper.algorithms import Constants, constants_not_private, ngd_not_private, ssp_not_private
from dplinked.not_private.paper.variances import (
    ngd_bias_not_private,
    ngd_excess_error,
    ngd_total_error,
    ngd_variance_not_private,
    ssp_excess_error,
    ssp_total_error,
    ssp_variance_not_private,
    unclipped_probability,
)

__all__ = [
    "Constants",
    "constants_not_private",
    "ngd_bias_not_private",
    "ngd_excess_error",
    "ngd_not_private",
    "ngd_total_error",
    "ngd_variance_not_private",
    "ssp_excess_error",
    "ssp_not_private",
    "ssp_total_error",
    "ssp_variance_not_private",
    "unclipped_probability",
]
