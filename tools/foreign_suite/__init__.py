"""Runs apache/rocketmq-e2e, a test suite of the RocketMQ project, against both servers: `make e2e`."""
