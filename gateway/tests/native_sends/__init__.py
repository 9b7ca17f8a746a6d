"""The same frames to two brokers: one takes plain sends in C (`native/`), one takes everything in Python.

Theory of operation
-------------------
Python is the truth. The native path may leave any frame to it, but what it takes it must treat as Python does: the
answer, the bytes in the log, the queue entry, the counts, whoever waits for the message. The same holds for the index
of keys. So `broker_pair.py` builds two brokers from the same configuration, clock and random seed, feeds both the same
bytes in the same pieces, and compares everything that can be seen afterwards. `frames.py` makes the frames: plain ones,
ones with a single oddity, requests of the fuzzer (`tools/fuzz`) and damaged ones. `rounds.py` feeds them, and changes
the brokers in between. `boundaries.py` lists the frames on both sides of each rule that the two paths share.

`make native-fuzz FRAMES=10000000` runs it in long. ``planting`` has defects of the C source that the tests must notice.
"""
