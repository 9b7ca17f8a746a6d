"""Offset-preserving replication: copying the primary's queues to a target of ours under the same offsets."""
