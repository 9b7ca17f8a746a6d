"""Setting the messages of a primary beside those of its mirror: what is missing, extra, wrong, out of order or late.

DataFrames in, DataFrames out; nothing is collected here. Importing this package imports no pyspark.
"""
