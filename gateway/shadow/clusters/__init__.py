"""The two RocketMQ clusters: connecting to them, asking them, and copying their metadata."""
