"""Figures that exporters and dashboards ask a broker for (codes 28 and 315)."""

import re

import pytest

from compat_tests.clients.typed import pull, pull_request, send_readable
from compat_tests.marks import case, read_only
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.bodies.progress import BrokerStatsData
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from remoting.requests.query import ViewBrokerStatsData
from remoting.requests.send import ConsumerSendMsgBack

KINDS = {
    r"-?\d+": """
        EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
        ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp commitLogMaxOffset commitLogMinOffset
        dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getMessageEntireTimeMax
        litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
        msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning
        msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity
        pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putMessageEntireTimeMax putMessageFailedTimes
        putMessageSizeTotal putMessageTimesTotal queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills
        queryThreadPoolQueueSize remainTransientStoreBufferNumbs sendThreadPoolQueueCapacity
        sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum
        timerOffsetBehind timerReadBehind""",
    r"[\d.]+": """
        commitLogDiskRatio consumeQueueDiskRatio putLatency99 putLatency999 putMessageAverageSize timerDequeueTps
        timerEnqueueTps""",
    r"[\d.E-]* [\d.E-]* [\d.E-]*": "getFoundTps getMissTps getTotalTps getTransferredTps putTps",
    r"Total : [\d.]+ [KMGT]iB, Free : [\d.]+ [KMGT]iB\.": "commitLogDirCapacity",
    r"(\[[^]]+\]:\d+ ){13}|null": "putMessageDistributeTime",
    r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]": "runtime",
    r"[\d.]+ ([KMGT]i)?B": "remainHowManyDataToFlush",
    r"V\d_\d_\d": "brokerVersionDesc",
    "true": "brokerActive",
}

"""Official rates are empty, and official distributions "null", until the first sample is taken."""


@read_only
@pytest.mark.parametrize("kind", KINDS)
@case("admin", "the runtime information has the official keys and kinds of values")
def test_runtime_information(broker: BlockingClient, kind: str) -> None:
    table = broker.ask(GetBrokerRuntimeInfo()).data.table
    found = {name: table.get(name, "missing") for name in KINDS[kind].split()}
    assert {name: value for name, value in found.items() if not re.fullmatch(kind, value)} == {}


@case("admin", "pulls in vain are counted as misses")
def test_misses(broker: BlockingClient, topic: str) -> None:
    send_readable(broker, topic)

    def has_misses() -> bool:
        pull(broker, topic, 1)
        misses = broker.ask(GetBrokerRuntimeInfo()).data.table["getMissTps"]
        return any(float(rate) > 0 for rate in misses.split())

    eventually(has_misses, 90, every_s=0.2)


@case("admin", "statistics of topics, groups and the whole broker exist once something was counted")
def test_statistics(broker: BlockingClient, topic: str, group: str) -> None:
    lines = bytes(broker.ask(GetBrokerConfig()).body).decode().splitlines()
    cluster = next(line for line in lines if line.startswith("brokerClusterName=")).partition("=")[2]
    assert_missing(broker, "TOPIC_PUT_NUMS", topic)
    assert_missing(broker, "SNDBCK_PUT_NUMS", f"{topic}@{group}")
    assert_missing(broker, "BROKER_PUT_NUMS", "another")
    sent = send_readable(broker, topic)
    broker.ask(pull_request(topic, consumer_group=group))
    offset = int(sent.msg_id[-16:], 16)
    broker.ask(ConsumerSendMsgBack(offset=offset, group=group, delay_level=0, origin_topic=topic))
    for name, key in (
        ("TOPIC_PUT_NUMS", topic), ("TOPIC_PUT_SIZE", topic), ("GROUP_GET_NUMS", f"{topic}@{group}"),
        ("GROUP_GET_SIZE", f"{topic}@{group}"), ("SNDBCK_PUT_NUMS", f"{topic}@{group}"),
        ("BROKER_PUT_NUMS", cluster), ("BROKER_GET_NUMS", cluster),
    ):  # fmt: skip
        assert statistic(broker, name, key).stats_minute.sum >= 0, name


def statistic(broker: BlockingClient, name: str, key: str) -> BrokerStatsData:
    return broker.ask(ViewBrokerStatsData(stats_name=name, stats_key=key)).data


def assert_missing(broker: BlockingClient, name: str, key: str) -> None:
    with pytest.raises(RequestError, match=f"The stats <{name}> <{re.escape(key)}> not exist"):
        statistic(broker, name, key)
