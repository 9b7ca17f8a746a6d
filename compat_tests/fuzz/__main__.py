"""Runs the fuzzer's command line for `python -m compat_tests.fuzz`."""

from compat_tests.fuzz.cli import main

main()
