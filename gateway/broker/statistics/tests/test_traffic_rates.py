from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.statistics.traffic_rates import DAY_S, HOUR_S, TOPIC_PUT, TrafficRates
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.tests.broker_fakes import FakeClock


class World:
    def __init__(self):
        self.clock = FakeClock(ms=1_700_000_000_000)
        self.stats = BrokerStats()
        self.rates = TrafficRates(self.stats, self.clock)

    def run(self, seconds, put_per_second=0):
        for _ in range(seconds // 10):
            self.stats.stored["t"].count_request(
                MessageType.NORMAL, put_per_second * 1000, put_per_second * 10
            )
            self.clock.pass_ms(10_000)
            self.rates.take_sample()


def test_rates_over_three_windows():
    world = World()
    world.run(540, 1)
    world.run(50, 10)
    world.run(10, 100)
    ten, minute, ten_minutes = map(float, world.rates.stored_text().split())
    assert (ten, minute) == (100.0, 25.0)
    assert round(ten_minutes, 2) == round((540 + 500 + 1000) / 600, 2)
    assert world.rates.delivered_text() == "0.0000 0.0000 0.0000"


def test_before_the_first_sample_nothing_is_claimed():
    assert World().rates.stored_text() == "0.0000 0.0000 0.0000"


def test_counts_reach_back_to_the_window_before():
    world = World()
    world.run(60, 1)
    assert world.rates.count(TOPIC_PUT, "t").messages == 60
    world.run(60, 2)
    world.run(30, 4)
    count = world.rates.count(TOPIC_PUT, "t")
    assert (count.messages, count.bytes) == (120 + 120, 24_000)
    assert round(count.per_second, 2) == round(240 / 90, 2)
    assert world.rates.count(TOPIC_PUT, "t", HOUR_S).messages == 300
    assert world.rates.count(TOPIC_PUT, "t", DAY_S).messages == 300
    assert world.rates.count(TOPIC_PUT, "unknown").messages == 0


def test_a_day_ends_at_midnight():
    world = World()
    world.run(40, 1)
    assert world.rates.this_morning == (0, 0)
    world.clock.pass_ms(86_400_000)
    world.rates.take_sample()
    assert (world.rates.yesterday, world.rates.this_morning) == ((0, 0), (40, 0))
    world.run(10, 1)
    world.clock.pass_ms(86_400_000)
    world.rates.take_sample()
    assert (world.rates.yesterday, world.rates.this_morning) == ((40, 0), (50, 0))
