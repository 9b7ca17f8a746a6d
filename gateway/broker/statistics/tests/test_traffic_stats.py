from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.statistics.traffic_stats import MAX_COUNTERS, BrokerStats


def test_counts_begin_at_nothing_and_add_up():
    stats, other = BrokerStats(), BrokerStats()
    stats.stored["t"].count_request(MessageType.NORMAL, 100, 2)
    stats.stored["t"].count_message(50)
    stats.delivered["g", "t"].count_messages(1, 50)
    assert (stats.stored["t"].messages, stats.stored["t"].bytes) == (3, 150)
    assert (stats.delivered["g", "t"].messages, stats.delivered["g", "other"].messages) == (1, 0)
    assert not other.stored


def test_what_is_deleted_is_forgotten():
    stats = BrokerStats()
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        stats.delivered[group, topic].count_messages(1, 1)
        stats.stored[topic].count_message(1)
    stats.forget_topic("t")
    assert (list(stats.stored), list(stats.delivered)) == (["u"], [("g", "u")])
    stats.forget_group("g")
    assert not stats.delivered


def test_beyond_a_number_all_others_are_counted_together():
    stats = BrokerStats()
    for number in range(MAX_COUNTERS + 500):
        stats.delivered["g", f"t{number}"].count_messages(1, 10)
    assert len(stats.delivered) == MAX_COUNTERS + 1
    assert sum(count.messages for count in stats.delivered.values()) == MAX_COUNTERS + 500
    stats.delivered["g", "t0"].count_messages(1, 10)
    assert stats.delivered["g", "t0"].messages == 2
