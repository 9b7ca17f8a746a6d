"""Mirroring: repeats at the target what clients did at the primary, without making them wait.

service.py               the mirror of a running gateway: connections, start and stop, console
mirror.py                chooses rule, mode and stream for each exchange; acts on its outcome
rules.py                 mirror rules, the current mode of each topic, and the file of modes set by operators
mirror_factory.py        makes the writers and backlogs of streams, for both directions
mirror_stream.py         one stream: order, batches, failures
reorder_buffer.py        puts exchanges into the primary's offset order
backlog.py               exchanges that wait for the target, in memory
spill_backlog.py         the same with a spill queue on disk; exchanges as bytes
spill_queue.py           the files of a spill queue
spill_directory.py       spill files of earlier runs: resumed or set aside
circuit_breaker.py       stops trying a failing target for a while
stream_account.py        counts of a stream by outcome
resend_writer.py         writes to any target by sending the clients' requests again, but none twice
consumer_offsets.py      writes committed consumer offsets to the target
offset_map.py            maps the primary's queue offsets to the target's
half_messages.py         half messages sent to the target, and their ends
check_back_producer.py   answers the target's check-backs
mirror_direction.py      what one direction of mirroring shares: state file, producer, destination
answer_holder.py         holds clients' answers in the synchronous modes
diverged_queues.py       queues of which the target lacks messages
"""
