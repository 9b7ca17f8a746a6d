"""Reserved for the PySpark data source; nothing is served here yet."""
