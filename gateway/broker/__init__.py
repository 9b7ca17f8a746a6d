"""One broker: its tables, its hot path and what it answers."""
