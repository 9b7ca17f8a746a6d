"""Offset-preserving replication: copying the primary's queues to a target of ours under the same offsets.

Messages do not come from exchanges: a feed per queue reads the primary, so that delayed and transactional messages,
retries, and messages that did not pass through the gateway are included. Streams of the mirror wait for the feed,
which is what synchronous modes hold answers for.

service.py                all parts together, as the mirror runs them
feed_set.py               discovers these queues and runs a feed for each
queue_feed.py             follows one queue: history first, then long polls
queue_copier.py           copies one queue, one read and one put at a time
read_ahead.py             copies a range with several reads at a time
replication_writer.py     the mirror's target writer: waits for a message's queue
consumer_offset_sync.py   moves consumer offsets forward
settings.py               the table `[replication]`
"""
