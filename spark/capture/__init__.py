"""The data source `rocketmq-capture`: capture files of the shadow gateway as rows, batch and streaming."""
