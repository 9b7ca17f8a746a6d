"""One valid request of each code, with names that are the same in every run, so that recorded remarks are too.

Requests that delete something name things that do not exist; those that create or change something do the same each
time. So the order of the variants does not matter, and other cases that share the server notice nothing.
"""

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Final

import remoting.requests  # noqa: F401 - declares all codes
from codec.batch import encode_batch
from remoting.declare import NOT_SERVED, REQUESTS, RpcRequest
from remoting.fields import Field
from remoting.requests.replication import PRIVATE_CODES

TOPIC, EMPTY_TOPIC, GROUP = "malformed_topic", "malformed_empty", "malformed_group"
"""Topics (one of them without messages) and a consumer group that exist."""
MADE, ABSENT = "malformed_made", "malformed_absent"
"""Names of things that requests create, and of things that never exist."""
BROKER, CLUSTER = "malformed_broker", "malformed_cluster"
"""Names under which requests register a broker with the namesrv."""
FAR_TIME_MS: Final = "4102444800000"
"""The year 2100: a request born then has never waited too long."""
BEYOND: Final = "999999999999"
"""An offset beyond every queue and every commit log."""

BROKER_CODES: Final = (
    10, 11, 12, 14, 15, 17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 43, 45, 46, 60, 61,
    105, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 225, 300, 303, 305, 306, 307, 309, 310, 314, 315, 316, 317,
    320, 321, 323, 324, 325, 328, 329, 343, 345, 351, 352, 353, 354, 355, 361, 370, 400, 401, 402, 513, 907, 1007, 2001,
    2002, 2003, 2004, 3001, 3002, 3003, 3004, 3005, 3006, 3007, 3008, 3009, 3010, 5001, 200050, 200051, 200052, 200053,
    200054, 200055, 200056, 200151,
)  # fmt: skip
"""Codes that the official broker serves."""
UNRECORDED_BROKER_CODES: Final = frozenset((308, 902, 903, 905, 906, 908, 1008))
"""Codes that are not sent to the broker. Most change its role. 308 (QUERY_CORRECTION_OFFSET) always fails after
commits for a missing group, which other variants lead to."""
NAMESRV_CODES: Final = (
    100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901, 904,
)  # fmt: skip
"""Codes that the official namesrv serves."""
OFFICIAL_CODES: Final = frozenset((*REQUESTS, *NOT_SERVED)) - frozenset(PRIVATE_CODES)
"""Codes of all official servers and clients, from 4.9 on."""
UNSERVED_BROKER_CODES: Final = tuple(sorted(OFFICIAL_CODES - {*BROKER_CODES} - UNRECORDED_BROKER_CODES))
"""Codes of other servers, of clients and of other versions. Their valid request alone is sent to the broker."""
UNSERVED_NAMESRV_CODES: Final = tuple(sorted(OFFICIAL_CODES - {*NAMESRV_CODES}))
"""Codes whose valid request alone is sent to the namesrv."""

VALUES: Final = {
    "topic": TOPIC, "defaultTopic": "TBW102", "consumerGroup": GROUP, "group": GROUP,
    "producerGroup": "malformed_sender",
    "groupName": ABSENT, "srcGroup": GROUP, "destGroup": MADE, "compareGroup": GROUP, "filterGroups": ABSENT,
    "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0", "subVersion": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "expressionType": "TAG", "maxMsgBytes": "1000",
    "requestSource": "0", "key": "malformed", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1",
    "indexType": "K", "lastKey": "", "_UNIQUE_KEY_QUERY": "false", "setZeroIfNotFound": "false", "readQueueNums": "4",
    "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    "attributes": "", "force": "false", "topicSeq": "0", "maxTopicNum": "1", "groupSeq": "0", "maxGroupNum": "1",
    "dataVersion": '{"counter":0,"stateVersion":0,"timestamp":0}', "timestamp": "1", "boundaryType": "lower",
    "committed": "true", "offset": BEYOND, "clientID": "malformed_client", "clientId": "malformed_client",
    "clientAddr": "", "delayLevel": "0", "originMsgId": ABSENT, "originTopic": TOPIC, "unitMode": "false",
    "maxReconsumeTimes": "16", "reconsumeTimes": "0", "tranStateTableOffset": "0", "commitLogOffset": BEYOND,
    "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": ABSENT, "transactionId": ABSENT,
    "namespace": "malformed", "value": "v", "brokerName": BROKER, "brokerAddr": "127.0.0.1:1", "clusterName": CLUSTER,
    "cluster": CLUSTER, "brokerId": "0", "compressed": "false", "bodyCrc32": "0", "heartbeatTimeoutMillis": "5000",
    "heartbeatTimeoutMills": "5000", "haServerAddr": "127.0.0.1:2", "enableActingMaster": "false", "epoch": "0",
    "maxOffset": "0", "confirmOffset": "0", "electionPriority": "0", "acceptStandardJsonOnly": "false",
    "cleanOffset": "false", "topicList": "", "isForce": "false", "jstackEnable": "false", "groupSysFlag": "0",
    "offline": "true", "statsName": "TOPIC_PUT_NUMS", "statsKey": ABSENT, "isOrder": "false", "index": "0",
    "count": "1",
    "defaultTopicQueueNums": "4", "bornTimestamp": "1", "flag": "0", "properties": "KEYS\x01k\x02", "batch": "false",
    "bornHost": "127.0.0.1:1", "storeHost": "127.0.0.1:1", "storeTimestamp": "1", "readable": "true",
    "checkStoreTime": "0", "configType": "topics;", "masterEpoch": "0", "invisibleTime": "60000", "pollTime": "0",
    "bornTime": FAR_TIME_MS, "initMode": "0", "expType": "TAG", "exp": "*", "attemptId": "a", "suspend": "false",
    "extraInfo": f"0 1 60000 0 0 {ABSENT} 0 0", "invokeTime": "0", "username": ABSENT, "filter": "",
    "policyType": "CUSTOM",
    "subject": f"User:{ABSENT}", "resource": f"Topic:{ABSENT}", "subjectFilter": "", "resourceFilter": "",
    "READ_AHEAD_MODE": "0", "E_T": "F", "accessKey": ABSENT, "admin": "false", "globalWhiteAddrs": "", "liteTopic": "",
    "recallHandle": base64.urlsafe_b64encode(f"v1 {TOPIC} {ABSENT} {FAR_TIME_MS} A".encode()).decode(),
    "maxMsgNum": "1", "masterBrokerId": "0", "designateElect": "false",
}  # fmt: skip
"""Valid values of header fields by name on the wire; a field that is not here is left out."""
_SHORT_NAMES: Final = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
_POP: Final = {"topic": EMPTY_TOPIC}
OVERRIDES: Final[dict[int, dict[str, str]]] = {
    17: {"topic": MADE},
    35: {"producerGroup": ABSENT, "consumerGroup": ABSENT},
    104: {"brokerName": ABSENT, "clusterName": ABSENT},
    205: {"brokerName": ABSENT},
    215: {"topic": ABSENT},
    216: {"topic": ABSENT},
    217: {"topic": MADE},
    222: {"group": MADE, "offset": "-1"},
    224: {"cluster": ABSENT},
    320: {"m": "true"},
    327: {"brokerName": ABSENT},
    370: {"producerGroup": "malformed_sender"},
    901: {"brokerName": ABSENT},
    200050: _POP,
    200051: _POP,
    200052: _POP,
    200053: _POP,
    200054: _POP,
    200055: _POP,
}
"""Values that differ for one code."""

_QUEUE: Final = {"topic": TOPIC, "brokerName": ABSENT, "queueId": 0}
_SUBSCRIPTION: Final = {"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 0}
_LOCKS: Final = {"consumerGroup": ABSENT, "clientId": "malformed_client", "mqSet": [_QUEUE]}
_TOPIC_CONFIG: Final = {"topicName": MADE, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
_CONSUMER: Final = {
    "groupName": GROUP,
    "consumeType": "CONSUME_PASSIVELY",
    "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "subscriptionDataSet": [_SUBSCRIPTION],
    "unitMode": False,
}
_REGISTRATION: Final = {
    "filterServerList": [],
    "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
        "topicConfigTable": {MADE: _TOPIC_CONFIG, ABSENT: {**_TOPIC_CONFIG, "topicName": ABSENT}},
    },
}
JSON_BODIES: Final[dict[int, Any]] = {
    18: {"topicConfigList": [_TOPIC_CONFIG]},
    34: {
        "clientID": "malformed_client",
        "consumerDataSet": [_CONSUMER],
        "producerDataSet": [{"groupName": MADE}],
    },
    41: _LOCKS,
    42: _LOCKS,
    46: {"clientId": "malformed_client", "group": GROUP, "subscriptionData": _SUBSCRIPTION},
    103: _REGISTRATION,
    200: {"groupName": GROUP},
    217: {"brokerDatas": [], "filterServerTable": {}, "queueDatas": []},
    225: {"groupConfigList": [{"groupName": GROUP}]},
    322: {"counter": 1, "stateVersion": 0, "timestamp": 1},
    400: {
        "topic": TOPIC,
        "consumerGroup": ABSENT,
        "clientId": "malformed_client",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    },
    401: {"topic": TOPIC, "consumerGroup": ABSENT, "mode": "PULL", "popShareQueueNum": 0},
    3001: {"username": ABSENT, "password": "p", "userType": "Normal"},
    3002: {"username": ABSENT, "password": "p"},
    3006: {"subject": f"User:{ABSENT}", "policies": []},
    3007: {"subject": f"User:{ABSENT}", "policies": []},
    200151: {"brokerName": ABSENT, "acks": []},
}
BODIES: Final[dict[int, bytes]] = {
    10: b"x",
    25: b"traceOn=true\n",
    310: b"x",
    318: b"waitSecondsForService=45\n",
    320: encode_batch([(0, b"x", b"")]),
    324: b"x",
    325: b"x",
    2001: b"malformed_group=1000\n",
    2002: b"malformed_group",
}


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """A valid request: its header fields as texts, its body, and the declared types of its fields."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    has_json_body: bool = False
    fields: dict[str, Field] = field(default_factory=dict)


def valid_request(code: int) -> ValidRequest:
    """Return the valid request of a code."""
    request_type = REQUESTS.get(code)
    rpc_fields = {item.wire for item in RpcRequest.WIRE_FIELDS} | {"lo", "n"}
    declared = (
        [item for item in request_type.WIRE_FIELDS if item.wire not in rpc_fields] if request_type else []
    )
    values = {**VALUES, **OVERRIDES.get(code, {})}
    ext = {}
    for item in declared:
        long_name = _SHORT_NAMES.get(item.wire, item.wire)
        value = values.get(item.wire, values.get(long_name))
        if value is not None:
            ext[item.wire] = value
    has_json = code in JSON_BODIES
    body = json.dumps(JSON_BODIES[code], sort_keys=True).encode() if has_json else BODIES.get(code, b"")
    return ValidRequest(code, ext, body, has_json, {item.wire: item for item in declared})
