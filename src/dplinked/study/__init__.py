"""What the steward declares, all of it public: formula, bounds, levels, linkage, unit and budget."""

from dplinked.study.study import Study

__all__ = ["Study"]
