"""One broker's files in the official formats, synchronous and without network code.

What holds after every kill and power cut, and the command that fails if it does not: docs/explanation/store-laws.md.
"""
