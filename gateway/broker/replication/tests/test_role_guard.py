import pytest

from codec.command import Command
from codec.constants import ResponseCode
from gateway.broker.processors import all_handlers
from gateway.broker.replication.role_guard import CHANGING, DECIDING, READING, STORING, RoleGuard
from gateway.config.replication import SLAVE, SYNC_MASTER
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.configs import broker_config
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.locks import LockBatchMq
from remoting.requests.offsets import InvokeBrokerToResetOffset, QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.pop import AckMessage, PopMessage
from remoting.requests.pull import LitePullMessage, PullMessage
from remoting.requests.query import QueryMessage, ViewMessageById
from remoting.requests.send import ConsumerSendMsgBack, RecallMessage, SendMessageV2
from remoting.requests.topics import GetAllTopicConfig, UpdateAndCreateTopic
from remoting.requests.transaction import EndTransaction

MASTER_AT = "10.0.0.1:10911"


def serve(connection, command):
    return b"served"


def slave(master=MASTER_AT, **settings):
    config = broker_config(broker_name="b", broker_role=SLAVE, broker_id=1, **settings)
    return RoleGuard(lambda: config, lambda: master)


def outcome(guard, request):
    try:
        return guard.guard(request.code, serve)(FakeConnection(), Command(request.code))
    except RequestError as error:
        return error.code, error.remark


@pytest.mark.parametrize("request_type", [SendMessageV2, UpdateAndCreateTopic, EndTransaction, PullMessage])
def test_a_master_pays_nothing(request_type):
    config = broker_config(broker_role=SYNC_MASTER)
    assert RoleGuard(lambda: config, lambda: "").guard(request_type.code, serve) is serve


@pytest.mark.parametrize(
    ("request_type", "code"),
    [
        (SendMessageV2, ResponseCode.SYSTEM_BUSY),
        (ConsumerSendMsgBack, ResponseCode.SYSTEM_BUSY),
        (PopMessage, ResponseCode.SYSTEM_BUSY),
        (AckMessage, ResponseCode.SYSTEM_BUSY),
        (EndTransaction, 11),
        (RecallMessage, 11),
        (UpdateAndCreateTopic, ResponseCode.SYSTEM_ERROR),
        (UpdateAndCreateSubscriptionGroup, ResponseCode.SYSTEM_ERROR),
        (InvokeBrokerToResetOffset, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_slave_refuses_with_the_official_code_and_says_where_the_master_is(request_type, code):
    refused_code, remark = outcome(slave(), request_type)
    assert refused_code == code
    assert remark.endswith(f". This is the slave 1 of b; its master is at {MASTER_AT}")
    assert outcome(slave(master=""), request_type)[1].endswith("; its master is not known at present")


def test_the_words_of_the_official_broker_are_there():
    assert outcome(slave(), UpdateAndCreateTopic)[1].startswith(
        "Can't modify topic or subscription group from slave broker, please execute it from master broker"
    )


@pytest.mark.parametrize(
    "request_type",
    [PullMessage, HeartBeat, QueryConsumerOffset, UpdateConsumerOffset, QueryMessage, ViewMessageById, LockBatchMq,
     GetAllTopicConfig],
)  # fmt: skip
def test_a_slave_serves_what_reads_and_what_clients_need(request_type):
    assert outcome(slave(), request_type) == b"served"


@pytest.mark.parametrize("request_type", [PullMessage, LitePullMessage, QueryMessage, ViewMessageById])
def test_a_former_master_serves_no_messages_before_its_log_is_compared(request_type):
    config = broker_config(broker_name="b", broker_role=SLAVE, broker_id=1)
    compared = []
    guard = RoleGuard(lambda: config, lambda: MASTER_AT, is_compared=lambda: bool(compared))
    serving = guard.guard(request_type.code, serve)
    with pytest.raises(
        RequestError, match=r"not compared with the master's yet.*the slave 1 of b"
    ) as refused:
        serving(FakeConnection(), Command(request_type.code))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert outcome(guard, QueryConsumerOffset) == b"served"
    compared.append(True)
    assert serving(FakeConnection(), Command(request_type.code)) == b"served"
    assert guard.guard(request_type.code, serve) is serve, "without a cost from then on"


def test_every_refused_request_is_one_that_a_broker_serves():
    refused = STORING | DECIDING | CHANGING | READING
    assert refused <= all_handlers().request_codes()
