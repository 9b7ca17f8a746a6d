"""Features the official broker serves and ours does not, and features neither serves, with our typed client.

Both must be refused with a clear answer.
"""

import json
from typing import Any

import pytest

from compat_tests.clients.typed import (
    batch_request,
    bodies,
    expect_refusal,
    pull,
    pull_request,
    send,
    send_plain,
    send_request,
    topic_request,
)
from compat_tests.marks import case, differs, needs_admin, not_served
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.admin import (
    GetColdDataFlowCtrInfo,
    RemoveColdDataFlowCtrConfig,
    SetCommitlogReadMode,
    UpdateColdDataFlowCtrConfig,
)
from remoting.requests.topics import GetTopicConfig

ILLEGAL, NO_CODE, NO_TOPIC = 13, 3, 17
INNER_BATCH_FLAG = 1 << 7


@case("admin", "static topics")
@not_served(reason="static topics: queues of one topic mapped to queues of several brokers")
def test_static_topic(broker: BlockingClient, server: ServerUnderTest) -> None:
    # The official server refuses the empty body as well, but not with "not supported".
    ext: dict[str, Any] = {
        "topic": server.topic_name(),
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
    }
    ext |= {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicSysFlag": "0", "order": "false"}
    assert send_plain(broker, 513, **ext).code != NO_CODE


@case("admin", "topics that are compacted by key")
@not_served(reason="cleanup.policy=COMPACTION is refused: only DELETE is served")
def test_compaction(broker: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    broker.ask(topic_request(name, 1, attributes="+cleanup.policy=COMPACTION"))
    error = expect_refusal(broker, send_request(name, b"no key"))
    assert (error.code, error.remark) == (ILLEGAL, "Required message key is missing")


@case("admin", "topics whose queues hold batches")
@not_served(reason="queue.type=BatchCQ is refused: only SimpleCQ is served")
def test_batch_queue(broker: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    broker.ask(topic_request(name, 1, attributes="+queue.type=BatchCQ"))
    content = [(str(i).encode(), {"UNIQ_KEY": f"{i:032X}"}) for i in range(3)]
    reply = broker.ask(batch_request(name, content, properties={"UNIQ_KEY": f"{9:032X}"}))
    assert "," not in reply.msg_id
    assert reply.batch_uniq_id == f"{9:032X}"


@case("admin", "the usual topic attributes are accepted: SimpleCQ, DELETE")
def test_usual_attributes(broker: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    broker.ask(topic_request(name, 1, attributes="+queue.type=SimpleCQ,+cleanup.policy=DELETE"))
    attributes = broker.ask(GetTopicConfig(topic=name)).data.attributes
    assert attributes == {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
    assert send(broker, name).queue_offset == 0


@needs_admin("changes settings of the broker")
@case("admin", "replication: a replica's requests to its master")
def test_replication(broker: BlockingClient) -> None:
    assert send_plain(broker, 906).code != NO_CODE


@needs_admin("changes settings of the broker")
@case(
    "admin",
    "mqadmin's questions about cold data, read-ahead and pop records are answered as by an idle server",
)
def test_idle_engines(broker: BlockingClient) -> None:
    info = json.loads(broker.ask(GetColdDataFlowCtrInfo()).body)
    assert (info["runtimeTable"], info["configTable"], info["globalAcc"]) == ({}, {}, 0)
    assert info["cgColdReadThreshold"] == 3_145_728
    update, remove = UpdateColdDataFlowCtrConfig(), RemoveColdDataFlowCtrConfig()
    update.body, remove.body = b"compat_cold=1000", b"compat_cold"
    broker.ask(update)
    broker.ask(remove)
    remark = "set commitlog readahead mode success, mode: 0"
    assert broker.ask(SetCommitlogReadMode(read_ahead_mode=0)).remark == remark
    error = expect_refusal(broker, SetCommitlogReadMode(read_ahead_mode=7))
    assert (error.code, error.remark) == (29, "set commitlog readahead mode param value error")
    assert send_plain(broker, 200056).code == 0


@case("admin", "lite topics of 5.5 are not supported (3)")
@pytest.mark.parametrize("code", range(200070, 200080))
def test_lite_topics(broker: BlockingClient, code: int) -> None:
    answer = send_plain(broker, code)
    assert (answer.code, answer.remark) == (NO_CODE, f" request type {code} not supported")


@case("send", "INNER_MULTI_DISPATCH: without enableLmq the named light queues get nothing")
def test_light_queues(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    light = f"%LMQ%{server.topic_name()}"
    send(broker, topic, b"once", properties={"INNER_MULTI_DISPATCH": light})
    found = eventually(lambda: (r := pull(broker, topic)).code == 0 and r)
    assert bodies(found) == [b"once"]
    assert expect_refusal(broker, pull_request(light, consumer_group=f"group_{topic}")).code == NO_TOPIC


@case("batch", "refused: a message flagged as an inner batch, in a topic of simple queues (13)")
@pytest.mark.parametrize("batch", [False, True])
def test_inner_batch(broker: BlockingClient, topic: str, batch: bool) -> None:
    if batch:
        content = [(b"x", {"UNIQ_KEY": f"{i:032X}"}) for i in range(2)]
        request: Any = batch_request(topic, content, sys_flag=INNER_BATCH_FLAG)
    else:
        request = send_request(topic, sys_flag=INNER_BATCH_FLAG, properties={"UNIQ_KEY": "A" * 32})
    assert expect_refusal(broker, request).code == ILLEGAL
    assert send(broker, topic).queue_offset == 0


@case("batch", "refused: a single message with an inner message count (13)")
def test_inner_number(broker: BlockingClient, topic: str) -> None:
    properties = {"UNIQ_KEY": "A" * 32, "INNER_NUM": "3"}
    assert expect_refusal(broker, send_request(topic, properties=properties)).code == ILLEGAL


@case("batch", "a unique key of the batch itself is answered as its transaction id, without a batch id")
def test_batch_key(broker: BlockingClient, topic: str) -> None:
    content = [(str(i).encode(), {"UNIQ_KEY": f"{i:032X}"}) for i in range(3)]
    reply = broker.ask(batch_request(topic, content, properties={"UNIQ_KEY": f"{9:032X}"}))
    assert len(reply.msg_id.split(",")) == 3
    assert (reply.transaction_id, reply.batch_uniq_id) == (f"{9:032X}", None)


@case("pull", "fields of a pull about static and lite topics are ignored")
@pytest.mark.parametrize(
    "fields", [{"lo": True, "bname": "another"}, {"lite_topic": "light"}, {"ns": "n", "nsd": True}]
)
def test_pull_of_another_kind(broker: BlockingClient, topic: str, fields: dict[str, Any]) -> None:
    send(broker, topic, b"plain")
    found = eventually(lambda: (r := pull(broker, topic, **fields)).code == 0 and r)
    assert bodies(found) == [b"plain"]


@case("pull", "refused: a filter of an unknown type (23)")
@differs(reason="the official broker lets every message pass")
def test_unknown_filter(broker: BlockingClient, topic: str) -> None:
    assert expect_refusal(broker, pull_request(topic, tags="a", expression_type="XPATH")).code == 23


@case("pull", "refused: a queue below 0 (29)")
def test_negative_queue(broker: BlockingClient, topic: str) -> None:
    assert expect_refusal(broker, pull_request(topic, queue_id=-1)).code == 29
