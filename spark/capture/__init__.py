"""The data source `rocketmq-capture`: the shadow gateway's capture files as rows, batch and streaming."""
