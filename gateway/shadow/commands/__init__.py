"""The commands `rmq-gateway shadow`, `capture` and `replay`: options, output and exit codes.

Modules here import the gateway's parts inside functions, so that `--help` and completion do not load trio and all
parts. The lazy imports hide no import circle: no other room imports this one.
"""
