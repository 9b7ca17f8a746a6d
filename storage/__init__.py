"""One broker's files in the official formats, synchronous and without network code."""
