"""Masters and slaves of every kind as real processes, through faults: `make pairings`.

Each pairing of an official broker or ours as master with an official broker or ours as slave goes through one story
(`story.py`): copy, kills, stops, a dropped link, takeover, return. Clients send and read all the time, and a history
(`history.py`) judges what was acknowledged against what can be read. The slave's machine is a network namespace.
"""
