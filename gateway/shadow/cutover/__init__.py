"""The steps of a move: copying what clusters know, and switching topics and groups over."""
