"""The watch on somebody's cluster, with a clock of the test."""

import pytest

from compat_tests.endpoints.reach import Unreachable
from compat_tests.report.endpoint_watch import CHECK_EVERY_S, GONE_AFTER_S, EndpointGone, EndpointWatch


class Cluster:
    """A cluster that answers or not, and the time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.answers = True
        self.checks = 0
        self.watch = EndpointWatch("h:1", self.find, lambda: self.now_s)

    def find(self, namesrv: str, timeout_s: float) -> str:
        assert (namesrv, timeout_s) == ("h:1", 0)
        self.checks += 1
        if not self.answers:
            raise Unreachable("nothing listens")
        return "h:2"

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.watch()


def test_it_asks_now_and_then_only() -> None:
    cluster = Cluster()
    for _ in range(40):
        cluster.pass_time(CHECK_EVERY_S / 10)
    assert cluster.checks == 4


def test_a_short_absence_is_not_the_end() -> None:
    cluster = Cluster()
    for answers in (False, True, False, True):
        cluster.answers = answers
        cluster.pass_time(CHECK_EVERY_S)


def test_a_long_absence_is() -> None:
    cluster = Cluster()
    cluster.answers = False
    while cluster.now_s + CHECK_EVERY_S < GONE_AFTER_S:
        cluster.pass_time(CHECK_EVERY_S)
    with pytest.raises(EndpointGone, match="nothing listens"):
        cluster.pass_time(CHECK_EVERY_S)
