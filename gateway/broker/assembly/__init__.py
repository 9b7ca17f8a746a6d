"""Builds one broker from its configuration, runs it and registers it with namesrvs."""
