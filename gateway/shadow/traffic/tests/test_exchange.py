"""The hub tells, asks and waits for whoever cares about a request code, and survives those who fail."""

import pytest

from gateway.shadow.tests.exchanges import pulled, sent
from gateway.shadow.traffic.exchange import Hub, Side


class Watching:
    def __init__(self, *codes, fails=False):
        self.wanted, self.fails, self.seen = codes or None, fails, []

    def codes(self):
        return self.wanted

    def observe(self, exchange):
        if self.fails:
            raise ValueError("defect")
        self.seen.append(exchange)


class Deciding(Watching):
    def side(self, code, frame):
        return Side.TARGET


class Holding(Watching):
    def hold(self, exchange, release):
        release(exchange.answer)
        return True


def test_observers_hear_of_their_codes_only():
    hub, sends, everything = Hub(), Watching(310), Watching()
    hub.observe_with(sends)
    assert (hub.watches(310), hub.watches(11), hub.wanted(11)) == (True, False, False)
    hub.observe_with(everything)
    assert hub.watches(11)
    for exchange in (sent("t"), pulled("t")):
        hub.over(exchange)
    assert ([each.code for each in sends.seen], [each.code for each in everything.seen]) == ([310], [310, 11])


def test_a_failing_observer_harms_nobody(caplog):
    hub, well = Hub(), Watching()
    hub.observe_with(Watching(fails=True))
    hub.observe_with(well)
    hub.over(sent("t"))
    assert len(well.seen) == 1
    assert "an observer failed" in caplog.text


def test_codes_are_asked_for_again_after_a_change():
    hub, observer = Hub(), Watching(310)
    hub.observe_with(observer)
    assert not hub.watches(11)
    observer.wanted = (11,)
    hub.changed()
    assert (hub.watches(11), hub.watches(310)) == (True, False)


def test_a_holder_holds_what_has_an_answer_to_release():
    hub, released = Hub(), []
    hub.hold_with(Holding(310))
    assert hub.watches(310)
    exchange = sent("t")
    assert hub.over(exchange, released.append)
    assert released == [exchange.answer]
    assert not hub.over(exchange)
    assert not hub.over(pulled("t"), released.append)


def test_one_director_and_one_holder():
    hub = Hub()
    hub.direct_with(Deciding(310))
    hub.hold_with(Holding())
    assert (hub.directs(310), hub.directs(11), hub.side(310, b"")) == (True, False, Side.TARGET)
    with pytest.raises(ValueError, match="director"):
        hub.direct_with(Deciding())
    with pytest.raises(ValueError, match="holder"):
        hub.hold_with(Holding())


def test_what_waits_is_called_once_per_decision():
    hub, calls = Hub(), []
    hub.when_decided(lambda: calls.append(1))
    hub.decided()
    hub.decided()
    assert calls == [1]
