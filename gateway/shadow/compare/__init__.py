"""Whether primary and target say and hold the same.

masks.py       what may differ without meaning anything, each with its reason
fields.py      an answer as leaves: field, place, value
answers.py     two answers to one request side by side
noise.py       fields that differ between two reads of the primary itself
questions.py   which requests may be asked again, and how, without any effect
pulls.py       asks them: of the target, and of the primary a second time
entries.py     a stored message cut down to who it is and what it holds
queues.py      queues read from outside, leaving nothing behind
alignment.py   two sequences of messages side by side
parity.py      content queue by queue: missing, extra, duplicated, reordered, changed
comparer.py    differences, samples and latencies counted by request and field
"""
