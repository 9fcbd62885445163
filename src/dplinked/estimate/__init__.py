"""From released sums to coefficients: post-processing only."""
