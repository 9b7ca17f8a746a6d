"""Register the data sources with a Spark session, ship them to executors, and pack an environment for a cluster."""
