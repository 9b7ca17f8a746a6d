"""Restores topics whose creation was not written before the process was killed.

A topic that a send creates is written a moment later (see `topic_table.py`), but its messages are in the commit log at
once. A topic counts as lost in this way if it is missing in topics.json and its newest message is not older than
the last change in that file. A topic that was deleted has no message after its deletion, so it stays deleted, even if
recovery finds some of its messages in the log. If the process was killed in the middle of a deletion, its queues are
left, and are deleted here: a topic of that name would show the old messages.

A topic with messages that are not confirmed yet (`storage/confirmed_store.py`) is always restored: these are its
newest, and their time cannot be read.
"""

import logging
import math
from contextlib import suppress

from codec.topics import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from gateway.broker.topics.topic_table import TopicTable
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from storage.errors import StoreFull
from storage.store import MessageStore

log = logging.getLogger(__name__)


def restore_topics(topics: TopicTable, store: MessageStore) -> None:
    """Create the missing topics, with as many queues as have messages or as the default topic has.

    Delete the queues of those whose deletion was announced and not finished. Other queues without a topic stay, as an
    operator may have taken the table from elsewhere.
    """
    missing: dict[str, list[int]] = {}
    for topic, queue_id in store.queue_keys():
        if topic not in topics and not topics.is_system(topic):
            missing.setdefault(topic, []).append(queue_id)
    for topic, queue_ids in missing.items():
        newest_ms = max(_newest_ms(store, topic, queue_id) for queue_id in queue_ids)
        if newest_ms >= topics.saved_ms:
            _restore_topic(topics, topic, max(queue_ids) + 1)
        elif topic in store.announced_deletions:
            _finish_deletion(store, topic)
    # Those that are left were carried out, or their topics are in the table: the change was not written.
    with suppress(StoreFull, OSError):
        store.forget_announced_deletions()


def _finish_deletion(store: MessageStore, topic: str) -> None:
    try:
        store.delete_topic(topic)
    except (StoreFull, OSError) as error:
        log.warning("queues of a deleted topic stay", extra={"topic": topic, "reason": str(error)})
    else:
        log.warning("interrupted deletion of a topic finished", extra={"topic": topic})


def _newest_ms(store: MessageStore, topic: str, queue_id: int) -> float:
    """Return the store timestamp of a queue's newest message; infinity if that is not confirmed yet."""
    end = store.max_offset(topic, queue_id)
    if store.next_queue_offset(topic, queue_id) > end:
        return math.inf
    return store.store_timestamp_at(topic, queue_id, end - 1)


def _restore_topic(topics: TopicTable, topic: str, used_queues: int) -> None:
    default = topics.get(DEFAULT_TOPIC)
    queues = used_queues
    if default is not None and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        queues = max(queues, default.write_queue_nums)
    queues = min(queues, topics.limits.max_queues_per_topic)
    config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
    try:
        topics.create_if_absent(config)
    except RequestError as error:
        log.warning("topic with messages not restored", extra={"topic": topic, "reason": error.remark})
    else:
        # A missing table has been reported already.
        level = logging.INFO if topics.file.is_missing else logging.WARNING
        log.log(level, "topic restored from its messages", extra={"topic": topic, "queues": queues})
