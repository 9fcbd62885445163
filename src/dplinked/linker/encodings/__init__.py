"""Linking files that may not be shared, on keyed encodings of their records.

Two holders encode the fields by which people are known; a linkage unit links encodings; an analysis unit joins rows under pseudonyms. Nobody but a holder sees identifiers.
"""
