"""The reading half of the data source `rocketmq`, on the driver: options, positions, limits and partitions.

Spark finds `datasource`; `batch_reader` and `stream_reader` are its two readers. Messages themselves are read
by `spark.pull`.
"""
