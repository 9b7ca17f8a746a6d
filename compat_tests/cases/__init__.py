"""The conformance cases by area; each makes its own topics and groups, so that they can run side by side."""
