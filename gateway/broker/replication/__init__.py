"""Replication: what a master sends its slaves and waits for, and how a slave follows its master."""
