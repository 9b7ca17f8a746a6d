"""Runs the command line for `python -m tools.power_cut`."""

from tools.power_cut.cli import main

main()
