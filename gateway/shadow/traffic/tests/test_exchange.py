"""The hub publishes exchanges to the parts that care about their code, and survives a part that raises."""

import pytest

from gateway.shadow.tests.exchanges import make_pull_exchange, make_send_exchange
from gateway.shadow.traffic.exchange import MAX_KNOWN_CODES, Hub, Side


class FakeObserver:
    def __init__(self, *codes, fails=False):
        self.wanted_codes, self.fails, self.seen = codes or None, fails, []

    def codes(self):
        return self.wanted_codes

    def observe(self, exchange):
        if self.fails:
            raise ValueError("defect")
        self.seen.append(exchange)


class FakeDirector(FakeObserver):
    def choose_side(self, code, frame):
        return Side.TARGET


class FakeHolder(FakeObserver):
    def holdable_codes(self):
        return self.codes()

    def observe(self, exchange, release=None):
        super().observe(exchange)
        if release is not None:
            release(exchange.answer)
        return release is not None


def test_observers_see_exchanges_of_their_codes_only():
    hub, sends, everything = Hub(), FakeObserver(310), FakeObserver()
    hub.add_observer(sends)
    assert (hub.is_observed(310), hub.is_observed(11), hub.interests[11].inspected) == (True, False, False)
    hub.add_observer(everything)
    assert hub.is_observed(11)
    for exchange in (make_send_exchange("t"), make_pull_exchange("t")):
        hub.publish_exchange(exchange)
    assert ([each.code for each in sends.seen], [each.code for each in everything.seen]) == ([310], [310, 11])


def test_a_failing_observer_does_not_affect_others(caplog):
    hub, other = Hub(), FakeObserver()
    hub.add_observer(FakeObserver(fails=True))
    hub.add_observer(other)
    hub.publish_exchange(make_send_exchange("t"))
    assert len(other.seen) == 1
    assert "observer failed" in caplog.text


@pytest.mark.parametrize("request_frame", [b"\0\0\0\x06\0\0\0\2{]", b"\0\0\0\x06\7\0\0\2{}"])
def test_a_request_that_is_no_command_is_no_failure_of_an_observer(request_frame, caplog):
    class Decoding(FakeObserver):
        def observe(self, exchange):
            self.seen.append(exchange.request_command)

    hub, other = Hub(), FakeObserver()
    hub.add_observer(Decoding())
    hub.add_observer(other)
    exchange = make_send_exchange("t")
    exchange.request = request_frame
    hub.publish_exchange(exchange)
    assert len(other.seen) == 1
    assert caplog.text == ""
    assert not hub.observer_failures


def test_interests_are_computed_again_after_a_change():
    hub, observer = Hub(), FakeObserver(310)
    hub.add_observer(observer)
    assert not hub.is_observed(11)
    observer.wanted_codes = (11,)
    hub.refresh_interests()
    assert (hub.is_observed(11), hub.is_observed(310)) == (True, False)


def test_a_holder_gets_only_answers_that_can_be_released():
    hub, released = Hub(), []
    hub.set_holder(FakeHolder(310))
    assert hub.is_observed(310)
    exchange = make_send_exchange("t")
    assert hub.publish_exchange(exchange, released.append)
    assert released == [exchange.answer]
    assert not hub.publish_exchange(exchange)
    assert not hub.publish_exchange(make_pull_exchange("t"), released.append)


def test_the_holder_is_told_after_all_observers():
    hub, calls = Hub(), []

    class Ordered(FakeHolder):
        def observe(self, exchange, release=None):
            calls.append(self)
            return super().observe(exchange, release)

    holder, capture = Ordered(310), Ordered(310)
    hub.set_holder(holder)
    hub.add_observer(capture)
    assert hub.publish_exchange(make_send_exchange("t"), lambda frame: None)
    assert calls == [capture, holder]


def test_a_failing_holder_lets_the_answer_pass(caplog):
    hub = Hub()
    hub.set_holder(FakeHolder(310, fails=True))
    assert not hub.publish_exchange(make_send_exchange("t"), lambda frame: None)
    assert hub.observer_failures == {"FakeHolder": 1}
    assert "observer failed" in caplog.text


def test_a_second_director_or_holder_is_an_error():
    hub = Hub()
    hub.set_director(FakeDirector(310))
    hub.set_holder(FakeHolder())
    assert (hub.is_directed(310), hub.is_directed(11), hub.choose_side(310, b"")) == (
        True,
        False,
        Side.TARGET,
    )
    with pytest.raises(ValueError, match="director"):
        hub.set_director(FakeDirector())
    with pytest.raises(ValueError, match="holder"):
        hub.set_holder(FakeHolder())


def test_callbacks_run_once_after_a_decision():
    hub, calls = Hub(), []
    hub.call_after_decision(lambda: calls.append(1))
    hub.announce_decision()
    hub.announce_decision()
    assert calls == [1]


def test_a_failing_callback_does_not_affect_others():
    hub, calls = Hub(), []

    def fail():
        raise AssertionError

    hub.call_after_decision(fail)
    hub.call_after_decision(lambda: calls.append(1))
    hub.announce_decision()
    hub.announce_decision()
    assert calls == [1]


def test_ever_new_codes_fill_no_memory():
    hub = Hub()
    hub.add_observer(FakeObserver(310))
    for code in range(3 * MAX_KNOWN_CODES):
        assert hub.is_observed(code) == (code == 310)
        assert len(hub.interests) <= MAX_KNOWN_CODES


def test_failures_of_an_observer_do_not_fill_the_log(caplog):
    hub = Hub()
    hub.add_observer(FakeObserver(fails=True))
    for _ in range(1000):
        hub.publish_exchange(make_send_exchange("t"))
    assert len(caplog.records) == 10
    assert [(each.labels["observer"], each.value) for each in hub.metrics()] == [("FakeObserver", 1000)]
