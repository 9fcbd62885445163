"""Generated data with linkage errors, for demonstrations, tests and experiments. Never part of a release."""

from dplinked.not_private.simulate.febrl import load_febrl
from dplinked.not_private.simulate.households import Money, draw_money, linked_households, mislink, paper_design
from dplinked.not_private.simulate.patients import linked_patients
from dplinked.not_private.simulate.people import TwoFiles, review_links, two_files

__all__ = [
    "Money",
    "TwoFiles",
    "draw_money",
    "linked_households",
    "linked_patients",
    "load_febrl",
    "mislink",
    "paper_design",
    "review_links",
    "two_files",
]
