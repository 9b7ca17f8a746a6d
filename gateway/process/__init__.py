"""The process that serves: the composition root, its ports and start lines, metrics export, and health probe."""
