"""The released result: frozen, complete, and made of released and declared values only."""

from dplinked.release.release import Privacy, Release

__all__ = ["Privacy", "Release"]
