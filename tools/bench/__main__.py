"""Runs the benchmark's command line for `python -m tools.bench`."""

from tools.bench.cli import main

main()
