"""The suite's clients: programs in Java, Go and Node with the Python code that builds and drives them, and helpers for
our own typed client."""
