"""Mirroring: repeats at the target what clients did at the primary, without making them wait.

service.py               the mirror of a running gateway: connections, start and stop
mirror.py                chooses rule, mode and stream for each exchange; acts on its outcome
rules.py                 mirror rules and the current mode of each topic
mode_overrides.py        modes set by operators, in a file
mirror_factory.py        makes the writers and backlogs of streams, for both directions
mirror_stream.py         one stream: order, batches, failures
reorder_buffer.py        puts exchanges into the primary's offset order
backlog.py               exchanges that wait for the target, in memory
spill_backlog.py         the same with a spill queue on disk
spill_queue.py           the files of a spill queue
spill_directory.py       spill files of earlier runs: resumed or set aside
exchange_codec.py        an exchange as bytes of a spill record
circuit_breaker.py       stops trying a failing target for a while
stream_account.py        counts of a stream by outcome
resend_writer.py         writes to any target by sending the clients' requests again
duplicate_check.py       looks for messages that the target may have stored already
consumer_offsets.py      writes committed consumer offsets to the target
offset_map.py            maps the primary's queue offsets to the target's
half_messages.py         half messages sent to the target, and their ends
check_back_producer.py   answers the target's check-backs
mirror_state.py          the state file: offset map and half messages
answer_holder.py         holds clients' answers in the synchronous modes
diverged_queues.py       queues of which the target lacks messages
routes.py                console routes
"""
