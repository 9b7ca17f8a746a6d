from gateway.shadow.mirror.circuit_breaker import BreakerState, CircuitBreaker


def test_breaker_opens_only_after_consecutive_failures():
    breaker = CircuitBreaker(3, 1.0, 10.0)
    for _ in range(5):
        breaker.record_failure(0.0)
        breaker.record_failure(0.0)
        breaker.record_success()
    assert (breaker.state, breaker.wait_s(0.0), breaker.opened_total) == (BreakerState.CLOSED, 0.0, 0)


def test_back_off_doubles_with_each_failure_and_success_closes_the_breaker():
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
