"""Linking files that may not be shared: what holders, the linkage unit and the analysis unit each do. See :func:`dplinked.encode`."""

from dplinked.linker.encodings.audit import answer_audit, audit_lists, compare_answers
from dplinked.linker.encodings.encode import Encoded, encode, new_key
from dplinked.linker.encodings.link import join_encoded

__all__ = ["Encoded", "answer_audit", "audit_lists", "compare_answers", "encode", "join_encoded", "new_key"]
