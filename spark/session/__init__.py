"""Making the data sources known to a Spark session, and shipping them to executors."""
