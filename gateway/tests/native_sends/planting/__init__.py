"""Defects planted into copies of the C sources: the tests of native sends must notice each of them."""
