"""The conformance cases by area; each creates its own topics and groups, so that they can run side by side."""
