"""Defects planted into copies of the tree: the simulation of replication must notice each of them."""
