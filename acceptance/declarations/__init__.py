"""Declarations of the official protocol, read from the classes in the jars: codes, headers, JSON bodies.

`java/` has the program that reads the classes by reflection; `recording.py` runs it for each client version and keeps
what it prints in `official_declarations.json`. `remoting/tests` compares our declarations with the recording, without
Java; `acceptance/test_declarations.py` compares the recording with the jars, and renews it with ``--record``.
"""
