"""The released result: frozen, complete, and made of released and declared values only."""

from dplinked.release.contents import Privacy
from dplinked.release.release import Release

__all__ = ["Privacy", "Release"]
