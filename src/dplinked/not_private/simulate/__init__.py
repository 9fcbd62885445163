"""Generated data with linkage errors, for demonstrations, tests and experiments. It is never part of a release."""
