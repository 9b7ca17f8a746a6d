"""Defects planted into copies of the tree: the simulation of controllers must notice each of them."""
