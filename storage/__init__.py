"""One broker's files in the official formats, synchronous. No network."""
