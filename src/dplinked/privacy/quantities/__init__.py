"""One file for each released quantity: how far one person can move it, with the proof; its noise; its draw.

Throughout, neighbours have the same number of rows. One person's regressors and response may change. The regressors come from
one file and sit on one row, j. The response sits on some row p, which is j itself only for an exact join, or on up to ν rows where links are one to many. ``R`` bounds ``|z|``, ``E`` the norm of a row of
regressors (without the intercept's 1), ``h`` the norm of a row of instruments. :class:`~dplinked.linkage.LinkageExposure`
says what else may change: the matching matrix by M in entrywise l1 norm, and k further rows' responses. It also says ν (`carriers`). No argument of a
sensitivity may come from the data.

A function that releases takes a private value, which carries what it was clipped to, and the release's
:class:`~dplinked.privacy.spending.Spending`. It computes its own sensitivity and takes its own share; nobody hands it a number.
"""
