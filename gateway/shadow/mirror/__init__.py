"""What clients sent to the primary, brought to the target as well, without the primary noticing."""
