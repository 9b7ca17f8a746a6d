from gateway.shadow.mirror.circuit_breaker import BreakerState, CircuitBreaker


def test_it_opens_after_failures_in_a_row_only():
    breaker = CircuitBreaker(3, 1.0, 10.0)
    for _ in range(5):
        breaker.record_failure(0.0)
        breaker.record_failure(0.0)
        breaker.record_success()
    assert (breaker.state, breaker.wait_s(0.0), breaker.opened_total) == (BreakerState.CLOSED, 0.0, 0)


def test_it_waits_twice_as_long_after_each_failed_attempt_and_closes_when_one_succeeds():
    breaker, now_s, waited = CircuitBreaker(1, 1.0, 5.0), 0.0, []
    for _ in range(5):
        breaker.record_failure(now_s)
        waited.append(breaker.wait_s(now_s))
        now_s += waited[-1]
        assert breaker.wait_s(now_s) == 0
        assert breaker.state is BreakerState.HALF_OPEN
    assert waited == [1.0, 2.0, 4.0, 5.0, 5.0]
    breaker.record_success()
    breaker.record_failure(now_s)
    assert breaker.wait_s(now_s) == 1.0
