"""Runs the command line for `python -m tools.foreign_suite`."""

from tools.foreign_suite.cli import main

main()
