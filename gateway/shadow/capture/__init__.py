"""Traffic to files and back: what passed is captured, looked at, and replayed to another cluster.

settings.py   what is captured, where to, how much is kept, what is removed before it is written
subject.py    topic, group and queue a request is about
redaction.py  bodies, properties and credentials that no file may hold
files.py      the folder of capture files
writer.py     the observer and its bounded buffer; blocks, rotation and retention (docs/reference/capture-format.md)
reader.py     files opened for reading
commands.py   `rmq-gateway capture` and `rmq-gateway replay`
"""
