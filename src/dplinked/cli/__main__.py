"""``python -m dplinked.cli`` runs the command line where the script ``dplinked`` is not installed."""

from dplinked.cli.main import main

main()
