"""The driver's side of the data source `rocketmq`: options, positions, limits, partitions.

Not responsible for reading messages (`spark.pull`).
"""
