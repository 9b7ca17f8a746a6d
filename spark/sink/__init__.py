"""The writers of the data source `rocketmq`: rows become messages, batch and streaming.

Not responsible for reading, nor for what Spark calls when (`datasource` is told).
"""
