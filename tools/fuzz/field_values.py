"""Valid values of header and body fields, by the Python names of the fields."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tools.fuzz.values import ADDRESSES, expression, valid_properties
from tools.fuzz.world import BROKER_NAME, CLIENT_IDS, CLUSTER, PRODUCER_GROUPS, QUEUES

if TYPE_CHECKING:
    from tools.fuzz.valid_requests import RequestSource

FAKE_BROKERS: Final = ("fuzz-broker-1", "fuzz-broker-2", "fuzz-broker-3")
CLAIMED_BROKERS: Final = (*FAKE_BROKERS, BROKER_NAME)
"""Names of registrations; the real broker's name must keep its real address."""
FAKE_CLUSTERS: Final = (CLUSTER, "fuzz-cluster")

Source = Callable[["RequestSource"], str]


def _one_of(*values: str) -> Source:
    return lambda source: source.chance.pick(values)


def _now(source: "RequestSource") -> str:
    # Not the clock: a repeated walk draws the same bytes.
    return source.chance.pick(("1700000000000", "1700000001234"))


def _topic(source: "RequestSource") -> str:
    return source.topic()


def _group(source: "RequestSource") -> str:
    return source.group()


def _attributes(source: "RequestSource") -> str:
    return source.chance.pick(
        (
            "+message.type=NORMAL",
            "+message.type=FIFO,+quota.send.messages=1000000",
            "+message.type=DELAY",
            "-message.type",
            "+cleanup.policy=DELETE",
            "+priority.factor.=1",
            "",
        )
    )


FIELD_SOURCES: Final[dict[str, Source]] = {
    "topic": _topic,
    "topic_name": lambda source: source.new_topic(),
    "origin_topic": _topic,
    "parent_topic": _topic,
    "default_topic": _one_of("TBW102", "TBW102", "fuzz_normal"),
    "topic_list": lambda source: ";".join((source.topic(), source.topic())),
    "producer_group": _one_of(*PRODUCER_GROUPS),
    "consumer_group": _group,
    "group": _group,
    "group_name": _group,
    "src_group": _group,
    "dest_group": _group,
    "compare_group": _group,
    "filter_groups": lambda source: ",".join((source.group(), source.group())),
    "client_id": _one_of(*CLIENT_IDS),
    "client_addr": _one_of("127.0.0.1:1", *CLIENT_IDS[:2]),
    "queue_id": lambda source: str(source.chance.below(QUEUES)),
    "default_topic_queue_nums": _one_of("4", "8", "1"),
    "read_queue_nums": _one_of("4", "8", "1", "16"),
    "write_queue_nums": _one_of("4", "8", "1", "16"),
    "perm": _one_of("6", "6", "4", "2", "7"),
    "topic_filter_type": _one_of("SINGLE_TAG", "MULTI_TAG"),
    "topic_sys_flag": _one_of("0", "0", "1", "2", "3"),
    "attributes": _attributes,
    "sys_flag": _one_of("0", "0", "0", "2", "4", "6", "7", "16"),
    "flag": _one_of("0", "1"),
    "born_timestamp": _now,
    "born_time": _one_of("0", "0", "4102444800000"),
    "timestamp": _one_of("0", "-1", "1700000000000", "4102444800000"),
    "begin_timestamp": _one_of("0", "1700000000000"),
    "end_timestamp": _one_of("9223372036854775807", "4102444800000"),
    "properties": lambda source: valid_properties(source.chance),
    "reconsume_times": _one_of("0", "1", "16"),
    "max_reconsume_times": _one_of("16", "1", "0"),
    "retry_max_times": _one_of("16", "1", "0"),
    "retry_queue_nums": _one_of("1", "2"),
    "queue_offset": _one_of("0", "1", "2", "3"),
    "commit_offset": _one_of("0", "1", "2"),
    "offset": _one_of("0", "1", "2", "3"),
    "first_offset": _one_of("0", "1", "2", "3"),
    "max_msg_nums": _one_of("1", "8", "32"),
    "max_num": _one_of("1", "32", "64"),
    "count": _one_of("1", "10", "100"),
    "index": _one_of("0", "1", "2"),
    "suspend_timeout_millis": _one_of("0", "200", "2000", "15000"),
    "poll_time": _one_of("0", "0", "200", "2000", "15000"),
    "invisible_time": _one_of("1000", "5000", "60000", "10000"),
    "subscription": lambda source: expression(source.chance)[1],
    "sub_string": lambda source: expression(source.chance)[1],
    "exp": lambda source: expression(source.chance)[1],
    "expression": lambda source: expression(source.chance)[1],
    "expression_type": lambda source: expression(source.chance)[0],
    "exp_type": lambda source: expression(source.chance)[0],
    "sub_version": _now,
    "tags_set": _one_of("a", "b"),
    "code_set": _one_of("97", "98"),
    "key": _one_of("k1", "k2", "key", "7F0000010001000000000000000000A1"),
    "index_type": _one_of("K", "U", "T"),
    "msg_id": lambda source: source.world.places[source.place()].message_id,
    "origin_msg_id": lambda source: source.world.places[source.place()].message_id,
    "boundary_type": _one_of("LOWER", "UPPER"),
    "delay_level": _one_of("0", "1", "3", "-1"),
    "broker_name": _one_of(*CLAIMED_BROKERS),
    "broker_addr": lambda source: source.chance.pick(ADDRESSES),
    "broker_addrs": lambda source: source.chance.pick(ADDRESSES),
    "ha_server_addr": _one_of("127.0.0.1:2", ""),
    "filter_server_list": _one_of("127.0.0.1:3"),
    "min_broker_addr": _one_of("127.0.0.1:4"),
    "offline_broker_addr": _one_of("127.0.0.1:4"),
    "ha_broker_addr": _one_of("127.0.0.1:4"),
    "master_address": _one_of("127.0.0.1:4"),
    "master_ha_address": _one_of("127.0.0.1:4"),
    "broker_address": _one_of("127.0.0.1:4"),
    "cluster": _one_of(*FAKE_CLUSTERS),
    "cluster_name": _one_of(*FAKE_CLUSTERS),
    "broker_id": _one_of("0", "1", "2"),
    "namespace": _one_of("fuzz", "ORDER_TOPIC_CONFIG", "fuzz2"),
    "stats_name": _one_of("TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "SNDBCK_PUT_NUMS", "x"),
    "stats_key": _one_of("fuzz_normal", "fuzz_normal@fuzz_group"),
    "init_mode": _one_of("0", "1"),
    "attempt_id": _one_of("attempt-1", "attempt-2"),
    "mode": _one_of("PULL", "POP"),
    "strategy_name": _one_of("AVG", "AVG_BY_CIRCLE"),
    "message_model": _one_of("CLUSTERING", "BROADCASTING"),
    "consume_type": _one_of("CONSUME_PASSIVELY", "CONSUME_ACTIVELY", "CONSUME_POP"),
    "consume_from_where": _one_of(
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"
    ),
    "writer": _one_of("fuzz-writer-1", "fuzz-writer-2"),
    "stage": _one_of("stage-0", "stage-1"),
    "name": _one_of("stage-0", "stage-1"),
    "pieces": _one_of("1", "2"),
    "batch": _one_of("0", "1", "2", "3"),
    "number": _one_of("0", "1", "2"),
    "recall_handle": lambda source: source.world.recall_handles[source.place()],
    "type": _one_of("CUSTOMIZED", "EXPONENTIAL"),
    "bit_set": _one_of("AQ==", "Aw==", "/w==", ""),
    "retry": _one_of("0", "1", "2"),
    "revive_queue_id": _one_of("0", "1", "7", "999"),
}
"""Valid values by the Python names of header and body fields."""
