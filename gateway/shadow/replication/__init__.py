"""Offset-preserving replication to a target that runs this server."""
