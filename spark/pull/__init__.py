"""Reading stretches of queues on an executor: pulls in, Arrow record batches out.

Not responsible for which stretches are read, nor for what Spark calls when: `spark.source` is.
"""
