"""Apache RocketMQ for Spark: the data sources `rocketmq` and `rocketmq-capture`, the sink, and ready-made pipelines.

    from spark import register
    register(spark_session)

This module is a facade for users: code inside the package imports `spark.session` instead. Importing it imports
neither pyspark nor pyarrow, so that the command line starts quickly. Rooms build on each other in this order, and none
imports a later one:

| room | contents |
|---|---|
| `spark/*.py` | errors, declared options, columns, connections to a cluster |
| `pull` | reading offset ranges into Arrow record batches, on executors |
| `source`, `sink` | the two halves of the data source `rocketmq`, as Spark calls them |
| `capture` | the data source `rocketmq-capture`: files a shadow gateway recorded |
| `session` | registering the sources, and shipping the package to executors |
| `tables` | exactly-once tables: Delta, or Parquet with one directory per batch |
| `reconciling`, `profiling` | comparing a primary with its mirror; describing traffic |
| `pipelines` | the ready-made jobs of `rmq-gateway spark` |
| `bench` | benchmarks of the sources |
"""

from spark.session.registration import register
from spark.session.shipping import ship

__all__ = ["register", "ship"]
