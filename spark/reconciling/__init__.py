"""Comparison of a primary's messages with those of its mirror: missing, extra, changed, out of order, or late ones.

DataFrames in, DataFrames out; nothing is collected here. Importing this package does not import pyspark.

`sides` reads both sides, `digests` reduces messages to identity, position and hashes, `pairs` matches and classifies
them, `order_sequences` finds those out of order, `counts` and `result` sum up the findings.
"""
