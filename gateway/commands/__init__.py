"""The command line: the root command, and the small commands that ask no server."""
