"""Whether primary and target say and hold the same."""
