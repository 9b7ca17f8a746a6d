"""Comparing primary and target: their answers to the same requests, and the messages they store.

Answer comparison runs all the time. Three kinds of answers are compared: those to mirrored requests, those to a
share of read-only requests that are repeated at the target, and second reads of the primary itself, which show the
fields that differ for no reason. Content parity runs when an operator or a move asks for it, and reads whole queues.

service.py               the comparison of a running gateway: parts, tasks, console routes
comparison_observer.py   observes traffic and mirror outcomes, picks what is compared
comparison_counts.py     counts, examples and latencies by request and field
answer_diff.py           the differences between two answers
answer_fields.py         an answer as a flat list of fields and values
expected_differences.py  fields that may differ, each with its reason
noise.py                 learns which fields differ between two reads of the primary itself
repeatable_reads.py      read-only requests that may be repeated, and the form that has no effect
read_repeater.py         repeats them at the target and, for second reads, at the primary
parity.py                content parity: missing, extra, duplicated, reordered and changed messages
queue_reader.py          reads a queue without leaving a trace
entries.py               what content parity compares of a stored message
alignment.py             aligns the messages of two queues
"""
