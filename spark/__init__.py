"""Apache RocketMQ in Spark: the data sources `rocketmq` and `rocketmq-capture`, the sink, and pipelines on them.

    from spark import register
    register(spark_session)

Not responsible for talking the protocol (`remoting`) or for what bytes mean (`codec`). Importing this package imports
neither pyspark nor pyarrow: what needs them imports them.
"""
