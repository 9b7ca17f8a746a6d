"""Converts bytes to values and back: frames, headers, messages, properties, ids. No I/O, no clock, no logging."""
