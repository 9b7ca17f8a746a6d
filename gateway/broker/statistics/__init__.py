"""Counts of what a broker stored and served: by topic and group, and as rates."""
