"""``python -m dplinked.cli``: the command line without its script."""

from dplinked.cli.main import main

main()
