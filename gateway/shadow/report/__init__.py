"""What an operator sees: console, metrics, live view, report."""
