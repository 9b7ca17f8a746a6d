"""Every command of the official mqadmin 5.4.0, and what it prints for the official servers.

`commands.py` lists the commands with their arguments, `printed_text.py` masks what differs from run to run, and
`recording.py` reads `official_output.json` and `deviations.toml`, the list of commands that print something else for
our server. The cases are in `compat_tests/cases/test_mqadmin.py`.
"""
