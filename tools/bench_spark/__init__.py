"""Benchmark of reading with Spark: rates, and the CPU time of broker, Python workers and JVM separately.

For measurements only: no other package imports this one.
"""
