"""The budget ledger: how much of a population's privacy budget was spent, and how much is left."""
