"""One file for each released quantity: how far one person can move it, with the proof; its noise; its draw.

Throughout, neighbours have the same number of rows. One person's regressors (row j) and response may change; their
response sits on some row p, which is j itself only for an exact join. ``R`` bounds ``|z|``, ``E`` the norm of a row of
regressors (without the intercept's 1), ``h`` the norm of a row of instruments. :class:`~dplinked.linkage.LinkageExposure`
says what else may change: the matching matrix by M in entrywise l1 norm, and k further rows' responses. No argument of a
sensitivity may come from the data.

A function that releases takes a private value, which carries what it was clipped to, and the release's
:class:`~dplinked.privacy.spending.Spending`. It computes its own sensitivity and takes its own share; nobody hands it a number.
"""
