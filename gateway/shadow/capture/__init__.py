"""Traffic to files, and from files to any endpoint."""
