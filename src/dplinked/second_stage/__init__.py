"""The second stage: from the first stage's coefficients to those of the clipped residual equation of right links.

What decides here (whether it pays, shares of the budget, clips) is public or released by then.
"""
