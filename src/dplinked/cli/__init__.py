"""The command line, ``dplinked``."""
