from remoting.limits import ConnectionLimits


def test_requests_stop_being_read_before_the_connection_is_closed():
    limits = ConnectionLimits()
    assert limits.read_bytes < limits.output_bytes < limits.output_limit_bytes
    assert limits.header_bytes < limits.frame_bytes
