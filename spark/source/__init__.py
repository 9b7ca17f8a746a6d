"""The reading half of the data source `rocketmq`, on the driver: options, positions, limits and partitions.

`datasource` is what Spark finds; `batch_reader` and `stream_reader` are its two readers. Messages themselves are read
by `spark.pull`.
"""
