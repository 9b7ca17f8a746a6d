"""Benchmark of reading with Spark: rates, and the CPU time of broker, Python workers and JVM separately.

For measuring only: nothing else imports this package.
"""
