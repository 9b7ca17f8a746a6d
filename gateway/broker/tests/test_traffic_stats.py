from gateway.broker.traffic_stats import BrokerStats


def test_counts_begin_at_nothing_and_add_up():
    stats, other = BrokerStats(), BrokerStats()
    stats.put["t"].count_messages(2, 100)
    stats.put["t"].count_messages(1, 50)
    stats.got["g", "t"].count_messages(1, 50)
    assert (stats.put["t"].messages, stats.put["t"].bytes) == (3, 150)
    assert (stats.got["g", "t"].messages, stats.got["g", "other"].messages) == (1, 0)
    assert not other.put
