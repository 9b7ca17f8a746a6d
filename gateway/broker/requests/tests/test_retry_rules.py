import pytest

from codec.message import Message
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.consumers.queue_locks import QueueLocks
from gateway.broker.requests.retry_rules import RetryRules
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.topics.topic_table import TopicDefaults, TopicTable
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError
from remoting.requests.send import ConsumerSendMsgBack
from storage.append import NewMessage

NEW_CLIENT, OLD_CLIENT = 400, 100


class World:
    def __init__(self):
        self.clock = FakeClock()
        self.topics = TopicTable(memory_config_file(), self.clock, TopicDefaults("c", "b"))
        self.groups = GroupTable(memory_config_file(), self.clock)
        self.locks = QueueLocks(self.clock)
        self.stats = BrokerStats()
        self.rules = RetryRules(self.topics, self.groups, self.locks, self.stats)

    def back(self, times=0, level=0, limit=None, version=NEW_CLIENT, **message):
        request = ConsumerSendMsgBack(offset=0, group="g", delay_level=level, max_reconsume_times=limit)
        message = {"topic": "t", "reconsume_times": times, "store_host": ("10.0.0.9", 10911), **message}
        return self.rules.make_retry_message(request, version, Message(**message))


@pytest.fixture
def world():
    return World()


def dead_letters(world):
    return {key: count.messages for key, count in world.stats.dead_letters.items()}


def resend(topic, times, limit=None, version=NEW_CLIENT):
    message = NewMessage(topic, 0, b"x", {"UNIQ_KEY": "U", "DELAY": "4"}, reconsume_times=times)
    return message, version, limit


def test_the_first_return_waits_at_level_three_and_each_further_one_longer(world):
    first = world.back(times=0, properties={"TAGS": "A", "UNIQ_KEY": "U"}, physical_offset=0x1234)
    assert (first.topic, first.queue_id, first.reconsume_times) == ("%RETRY%g", 0, 1)
    assert first.properties == {
        "TAGS": "A",
        "UNIQ_KEY": "U",
        "RETRY_TOPIC": "t",
        "WAIT": "false",
        "DELAY": "3",
        "ORIGIN_MESSAGE_ID": "0A00000900002A9F0000000000001234",
    }
    assert world.back(times=5).properties["DELAY"] == "8"
    assert world.topics.get("%RETRY%g").write_queue_nums == 1


def test_a_consumer_may_name_the_level(world):
    assert world.back(times=5, level=2).properties["DELAY"] == "2"


def test_origin_and_retry_topic_survive_further_returns(world):
    again = world.back(
        times=1, topic="%RETRY%g", properties={"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "FIRST"}
    )
    assert again.properties["RETRY_TOPIC"] == "t"
    assert again.properties["ORIGIN_MESSAGE_ID"] == "FIRST"


@pytest.mark.parametrize(
    ("times", "limit", "version", "dead"),
    [
        (15, None, NEW_CLIENT, False),
        (16, None, NEW_CLIENT, True),
        (2, 2, NEW_CLIENT, True),
        (1, 2, NEW_CLIENT, False),
        (2, 2, OLD_CLIENT, False),
        (16, 99, OLD_CLIENT, True),
    ],
)
def test_attempts_are_limited(world, times, limit, version, dead):
    message = world.back(times=times, limit=limit, version=version)
    assert message.topic == ("%DLQ%g" if dead else "%RETRY%g")
    assert dead_letters(world) == ({("g", "t"): 1} if dead else {})
    if dead:
        assert message.properties["DELAY"] == "0"
        assert message.reconsume_times == times + 1
        assert (world.topics.get("%DLQ%g").perm, world.topics.get("%DLQ%g").write_queue_nums) == (6, 1)


def test_a_negative_level_means_give_up(world):
    assert world.back(level=-1).topic == "%DLQ%g"


def test_dead_letters_are_counted_by_the_topic_they_were_sent_to(world):
    world.back(level=-1, topic="%RETRY%g", properties={"RETRY_TOPIC": "orders"})
    message, *client = resend("%RETRY%g", 17)
    message.properties["RETRY_TOPIC"] = "orders"
    world.rules.redirect_to_dead_letters(message, *client)
    assert dead_letters(world) == {("g", "orders"): 2}


def test_a_group_without_retry_queues_keeps_nothing(world):
    world.groups.find_or_create("g").retry_queue_nums = 0
    assert world.back() is None


def test_a_closed_retry_topic_refuses(world):
    world.back()
    world.topics.get("%RETRY%g").perm = 4
    with pytest.raises(RequestError, match=r"the topic\[%RETRY%g\] sending message is forbidden") as refused:
        world.back()
    assert refused.value.code == 16


def test_an_unknown_group_is_refused(world):
    world.groups.auto_create = False
    with pytest.raises(RequestError, match="subscription group not exist, g") as refused:
        world.back()
    assert refused.value.code == 26


def test_queues_of_the_retry_topic_are_all_used(world):
    world.groups.find_or_create("g").retry_queue_nums = 4
    assert {world.back().queue_id for _ in range(200)} == {0, 1, 2, 3}


def test_other_topics_are_left_alone(world):
    message, *client = resend("t", 99)
    assert world.rules.redirect_to_dead_letters(message, *client) is message


@pytest.mark.parametrize(
    ("times", "limit", "version", "dead"),
    [
        (16, None, NEW_CLIENT, False),
        (17, None, NEW_CLIENT, True),
        (3, 2, NEW_CLIENT, True),
        (2, 2, NEW_CLIENT, False),
        (3, 2, OLD_CLIENT, False),
    ],
)
def test_a_resent_message_is_dead_after_its_attempts(world, times, limit, version, dead):
    message, *client = resend("%RETRY%g", times, limit, version)
    result = world.rules.redirect_to_dead_letters(message, *client)
    assert dead_letters(world) == ({("g", "%RETRY%g"): 1} if dead else {})
    if not dead:
        assert result is message
    else:
        assert (result.topic, result.queue_id, result.properties["DELAY"]) == ("%DLQ%g", 0, "-1")
        assert message.properties["DELAY"] == "4"


def test_a_group_that_consumes_in_order_sends_only_dead_messages(world):
    world.locks.lock("g", [MessageQueue(topic="t", broker_name="b", queue_id=0)], "c1")
    message, *client = resend("%RETRY%g", 1)
    assert world.rules.redirect_to_dead_letters(message, *client).topic == "%DLQ%g"
    world.clock.pass_ms(60_001)
    assert world.rules.redirect_to_dead_letters(message, *client) is message
