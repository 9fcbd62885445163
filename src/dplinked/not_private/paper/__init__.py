"""The paper's experiments as they were run. Functions whose names end in ``_not_private`` read the data without paying for it.

[LPK24] Shurong Lin, Elliot Paquette, Eric D. Kolaczyk, *Differentially Private Linear Regression with
Linked Data*, Harvard Data Science Review, 2024.
"""
