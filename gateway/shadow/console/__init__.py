"""The HTTP console of a running gateway and the client that the commands use to reach it."""
