"""Ready-made jobs: `rmq-gateway spark <name> -c <name>.toml`, or through spark-submit (`submit.py`).

Importing this package imports neither pyspark nor a pipeline.
"""
