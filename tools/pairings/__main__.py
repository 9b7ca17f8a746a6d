"""Runs the command line for `python -m tools.pairings`."""

from tools.pairings.cli import main

main()
