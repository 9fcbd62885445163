"""The studio: a local web app over the library's own functions. Nothing here computes anything of a release."""
