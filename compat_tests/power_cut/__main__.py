"""Runs the command line for `python -m compat_tests.power_cut`."""

from compat_tests.power_cut.cli import main

main()
