"""The client programs of the suite (Java, Go, Node) and what builds and drives them.

Not responsible for what the cases expect of them.
"""
