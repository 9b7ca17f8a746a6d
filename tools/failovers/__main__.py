"""Runs the command line for `python -m tools.failovers`."""

from tools.failovers.cli import main

main()
