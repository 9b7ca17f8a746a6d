"""Runs the fuzzer's command line for `python -m tools.fuzz`."""

from tools.fuzz.cli import main

main()
