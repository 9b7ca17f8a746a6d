from remoting.limits import ConnectionLimits


def test_requests_stop_being_read_before_the_connection_is_closed():
    limits = ConnectionLimits()
    assert limits.read_bytes < limits.output_high_watermark_bytes < limits.max_output_bytes
    assert limits.max_header_bytes < limits.max_frame_bytes
