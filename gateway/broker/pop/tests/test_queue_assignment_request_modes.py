"""The table of request modes: its limit, and that what exists may still be changed there."""

from dataclasses import replace

import pytest

from gateway.broker.pop.queue_assignment import RequestModes
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_fakes import memory_config_file
from remoting.bodies.pop import SetMessageRequestModeRequestBody
from remoting.errors import RequestError


def mode(group, value="POP"):
    return SetMessageRequestModeRequestBody(topic="orders", consumer_group=group, mode=value)


def test_modes_are_bounded_and_those_that_exist_may_change():
    limits = replace(BrokerLimits(), max_request_modes=2)
    table = RequestModes(memory_config_file("messageRequestMode.json"), limits)
    table.set_mode(mode("one"))
    table.set_mode(mode("two"))
    with pytest.raises(
        RequestError, match=r"the limit of 2 request modes of groups.*raise maxRequestModes"
    ) as refused:
        table.set_mode(mode("three"))
    assert refused.value.code == 1
    table.set_mode(mode("two", "PULL"))
    found = table.find_mode("orders", "two")
    assert found is not None
    assert found.mode == "PULL"
    assert table.find_mode("orders", "three") is None
