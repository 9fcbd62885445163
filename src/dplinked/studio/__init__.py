"""The studio: a local web app that calls the library's functions. It computes no part of a release itself."""
