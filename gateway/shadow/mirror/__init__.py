"""Mirroring: bringing what clients did at the primary to the target, without making them wait."""
