"""Delays before a broker process is started again, and ends after which that would not help."""

import pytest

from gateway.process.supervision.restart_policy import BrokerStartError, ProcessEnd, RestartPolicy
from toolkit.settings import SettingsError

KILLED = ProcessEnd(-9)


def ready_policy(now_s: float = 0.0) -> RestartPolicy:
    policy = RestartPolicy("broker-a")
    policy.record_ready(now_s)
    return policy


def test_the_delay_doubles_with_each_end_in_a_row_up_to_a_minute() -> None:
    policy = ready_policy()
    assert [policy.delay_after(KILLED, 1.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    for _ in range(2000):
        assert policy.delay_after(KILLED, 1.0) == 60


def test_a_process_that_ran_for_a_minute_starts_the_row_anew() -> None:
    policy = ready_policy()
    policy.delay_after(KILLED, 1.0)
    policy.delay_after(KILLED, 4.0)
    policy.record_ready(10.0)
    assert policy.delay_after(KILLED, 69.9) == 4
    policy.record_ready(100.0)
    assert policy.delay_after(KILLED, 160.0) == 1


def test_time_without_a_ready_process_does_not_start_the_row_anew() -> None:
    policy = ready_policy()
    policy.delay_after(KILLED, 1.0)
    assert policy.delay_after(ProcessEnd(1), 1000.0) == 2


def test_a_process_that_was_never_ready_ends_the_server_with_its_own_error() -> None:
    policy = RestartPolicy("broker-a")
    with pytest.raises(BrokerStartError, match=r"^cannot listen on 0.0.0.0:1 \(listenPort\)$"):
        policy.delay_after(ProcessEnd(1, ("cannot listen on 0.0.0.0:1 (listenPort)",)), 1.0)


def test_wrong_settings_keep_their_exit_code() -> None:
    with pytest.raises(SettingsError, match=r"^tls.server.certPath is not set$"):
        RestartPolicy("broker-a").delay_after(ProcessEnd(2, ("tls.server.certPath is not set",)), 1.0)


def test_without_an_error_of_its_own_the_end_is_told() -> None:
    with pytest.raises(BrokerStartError, match=r"^broker-a ended before it was ready: SIGKILL$"):
        RestartPolicy("broker-a").delay_after(KILLED, 1.0)


@pytest.mark.parametrize(
    ("status", "text"), [(0, "exit status 0"), (3, "exit status 3"), (-15, "SIGTERM"), (-199, "signal 199")]
)
def test_ends_as_text(status: int, text: str) -> None:
    assert str(ProcessEnd(status)) == text
