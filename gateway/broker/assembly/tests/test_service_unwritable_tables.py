"""Changes by administrators that cannot be written: refused, undone, and as before after a killed process."""

import errno
import os
from dataclasses import replace

import pytest

from gateway.tests.broker_fakes import FakeClock
from gateway.tests.broker_world import World
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.pop import SetMessageRequestModeRequestBody
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.groups import (
    DeleteSubscriptionGroup,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndGetGroupForbidden,
)
from remoting.requests.pop import SetMessageRequestMode
from remoting.requests.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from storage.crash_files import CrashFiles
from storage.errors import StoreFull

FULL = StoreFull("no room for /store/config/table.json", "no room on disk")
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "/store/config/table.json")


class UnwritableFiles(CrashFiles):
    """Files of which small ones cannot be written while ``error`` is set."""

    error: Exception | None = None

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        self._fail()
        super().write_small(path, data, backup)

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        self._fail()
        super().replace_small(path, data, backup)


def topic_request(topic, queues=4):
    return UpdateAndCreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )


def group_request(group, **more):
    return UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=group, **more))


def mode_request(mode):
    body = SetMessageRequestModeRequestBody(topic="t", consumer_group="g", mode=mode)
    return SetMessageRequestMode(data=body)


REQUESTS = {
    "create a topic": topic_request("new"),
    "change a topic": topic_request("t", 8),
    "delete a topic": DeleteTopicInBroker(topic="t"),
    "create a group": group_request("new"),
    "change a group": group_request("g", retry_max_times=3),
    "delete a group": DeleteSubscriptionGroup(group_name="g", clean_offset=True),
    "forbid a topic": UpdateAndGetGroupForbidden(group="g", topic="t", readable=False),
    "allow a topic": UpdateAndGetGroupForbidden(group="g", topic="closed", readable=True),
    "set a mode": mode_request("PULL"),
}


def tables(world):
    """Return everything that the requests may change."""
    broker = world.broker
    return (
        {topic: config.to_value() for topic, config in broker.topics.table.items()},
        broker.topics._queue_count,
        {group: config.to_value() for group, config in broker.groups.table.items()},
        {group: dict(topics) for group, topics in broker.groups.forbidden.items()},
        broker.pop.request_modes.to_json(),
        {key: dict(queues) for key, queues in broker.offsets.table.items()},
        {
            (topic, queue_id): broker.store.max_offset(topic, queue_id)
            for topic in ("t", "new")
            for queue_id in range(4)
        },
    )


def used_world(files):
    world = World(files, FakeClock())
    for topic in ("t", "closed"):
        world.ask(topic_request(topic))
    world.ask(group_request("g"))
    world.ask(UpdateAndGetGroupForbidden(group="g", topic="closed", readable=False))
    world.ask(mode_request("POP"))
    world.put("t")
    world.broker.offsets.commit_offset("g", "t", 0, 1)
    return world


@pytest.mark.parametrize("error", [FULL, READ_ONLY], ids=["full", "read-only"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_change_that_cannot_be_stored_is_refused_and_undone(name, error):
    files = UnwritableFiles()
    world = used_world(files)
    before = tables(world)
    changes = []
    world.broker.topics.add_listener(changes.append)
    files.error = error
    with pytest.raises(RequestError, match="the change was not stored and is undone: ") as refusal:
        world.ask(REQUESTS[name])
    assert refusal.value.code == 1
    assert "/store" not in str(refusal.value.remark)
    assert tables(world) == before
    last = {config.topic_name: config for change in changes for config in change.stored}
    for change in changes:
        last |= dict.fromkeys(change.deleted) if change is changes[-1] else {}
    assert {topic: world.broker.topics.get(topic) for topic in last} == last
    files.error = None
    world.ask(REQUESTS[name])
    assert tables(world) != before


def test_the_deletion_of_a_topic_that_cannot_be_noted_is_undone(monkeypatch):
    files = UnwritableFiles()
    world = used_world(files)
    before = tables(world)

    def fail(*deletion):
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(world.broker.store._deleted_topics, "add", fail)
        with pytest.raises(RequestError, match="the topic was not deleted: that cannot be noted"):
            world.ask(DeleteTopicInBroker(topic="t"))
    assert tables(world) == before
    world.ask(DeleteTopicInBroker(topic="t"))
    assert "t" not in world.broker.topics


def test_all_topics_whose_deletion_is_not_noted_are_restored(monkeypatch):
    world = used_world(UnwritableFiles())
    world.broker.config = replace(world.broker.config, clear_retry_topic_when_delete_topic=True)
    retry_topics = ["%RETRY%g+t", "%RETRY%g_t"]
    for topic in retry_topics:
        world.topic(topic, 1)
    add = world.broker.store._deleted_topics.add

    def fail_at_the_second(topic, *deletion):
        if topic != "t":
            raise FULL
        add(topic, *deletion)

    monkeypatch.setattr(world.broker.store._deleted_topics, "add", fail_at_the_second)
    with pytest.raises(RequestError, match="that cannot be noted"):
        world.ask(DeleteTopicInBroker(topic="t"))
    assert "t" not in world.broker.topics
    assert all(topic in world.broker.topics for topic in retry_topics)


def test_a_topic_that_two_requests_delete_is_not_created_until_both_are_done():
    world = used_world(UnwritableFiles())
    with world.broker.topics.no_creation(["new"]):
        with world.broker.topics.no_creation(["new"]):
            pass
        with pytest.raises(RequestError, match="is being deleted"):
            world.ask(topic_request("new"))
    world.ask(topic_request("new"))


def test_a_change_by_the_broker_itself_stays_though_an_administrator_is_refused():
    files = UnwritableFiles()
    world = used_world(files)
    retry_topic = TopicConfig(topic_name="%RETRY%g_t", read_queue_nums=1, write_queue_nums=1)
    world.broker.topics.update([retry_topic], by_broker=True)
    files.error = FULL
    with pytest.raises(RequestError, match="the change was not stored and is undone: "):
        world.ask(topic_request("new"))
    assert "%RETRY%g_t" in world.broker.topics
    assert "new" not in world.broker.topics


def test_a_topic_is_not_created_while_it_is_deleted():
    world = used_world(UnwritableFiles())
    with world.broker.topics.no_creation(["new"]), pytest.raises(RequestError, match="is being deleted"):
        world.ask(topic_request("new"))
    world.ask(topic_request("new"))
