"""Runs the benchmark's command line for `python -m compat_tests.bench`."""

from compat_tests.bench.cli import main

main()
