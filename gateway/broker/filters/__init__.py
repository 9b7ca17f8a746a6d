"""Consumers' filters: tags and SQL92 expressions, compiled, cached, and kept for their groups."""
