"""Stores that change hands: fills of every kind of message, and the laws that hold on whatever server opens them next.

A `Kind` (`kinds.py`) writes one kind of message through the ordinary protocol and later checks what the next server
made of it. `servers.py` starts writers and readers on copies of one store. `cases/test_interchange.py` has the table
of who writes, how that ends, and who reads.
"""
