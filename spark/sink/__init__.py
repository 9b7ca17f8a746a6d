"""The writing half of the data source `rocketmq`, batch and streaming: rows become messages.

Spark calls `writers`. In each task, `row_encoder` turns rows into messages and `message_sender` sends them;
with `delivery=staged`, `staged_delivery` leaves them at a broker until the driver publishes the batch.
"""
