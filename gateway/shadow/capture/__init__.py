"""Capture of traffic to files, and replay of captured traffic to another cluster.

settings.py        the tables `[capture]`: files, rules, redaction, limits
redaction.py       removes bodies, properties and credentials from frames
selection.py       picks exchanges by rules and turns them into records
files.py           the folder of capture files
rotation.py        appends blocks of records to files, rotates and deletes files
writer.py          the observer: a bounded buffer and the task that writes it
reader.py          capture files opened for reading
replay_plan.py     picks the requests to replay and orders them
retarget.py        rewrites a captured request for another cluster
replay.py          sends the planned requests
summary.py         contents of files and results of replays, as JSON and text

The file format is in `docs/reference/capture-format.md` and `codec.capture`.
"""
