"""The budget ledger: what was spent on a population, and what is left."""
