"""Tests of every declared request: it survives both serialisations, and it is what the official jars say.

``acceptance/declarations/official_declarations.json`` lists, for 5.4.0, for what 5.5.0 changed and for what 5.4.0
dropped since 4.9.8: the constants of RequestCode and ResponseCode, every header class with its fields (Java type,
@CFNotNull, @CFNullable, default of a new instance, code of its @RocketMQAction, names that its own codec writes and
reads), and the JSON properties of every body class. A Java program reads them from the jars by reflection, and a
conformance case checks that they still are what the jars declare.
"""

import json
import re
from collections import ChainMap
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import remoting.bodies
import remoting.requests
from codec.command import Command, decode_frame, encode_command
from codec.constants import ResponseCode
from remoting.declare import NOT_SERVED, REQUESTS, Header, Request
from remoting.fields import MISSING, Declared, Field
from remoting.json_body import JsonBody
from remoting.requests.controller import ControllerElectMaster
from remoting.requests.replication import PRIVATE_CODES

RECORDING = Path(__file__).parents[2] / "acceptance" / "declarations" / "official_declarations.json"
OFFICIAL: dict[str, Any] = json.loads(RECORDING.read_text("utf-8"))
HEADERS: Mapping[str, Any] = ChainMap(
    *(OFFICIAL["headers"][version] for version in ("5.5.0", "5.4.0", "4.9.8"))
)
BODIES: dict[str, Any] = OFFICIAL["bodies"]["5.4.0"] | OFFICIAL["bodies"]["5.5.0"]
CODES: Mapping[str, int] = ChainMap(*OFFICIAL["request_codes"].values())

# Those of official servers; the private ones have no counterpart.
OFFICIAL_REQUESTS = {code: request for code, request in REQUESTS.items() if code not in PRIVATE_CODES}

# Codes that share the header of another one, or whose header has another name.
SHARED = {
    50: "CreateAccessConfigRequestHeader",
    51: "DeleteAccessConfigRequestHeader",
    220: "ResetOffsetRequestHeader",
    221: "GetConsumerStatusRequestHeader",
    320: "SendMessageRequestHeaderV2",
    324: "SendMessageRequestHeader",
    325: "SendMessageRequestHeaderV2",
    361: "PullMessageRequestHeader",
    513: "CreateTopicRequestHeader",
}

# Reply headers whose name does not follow from the request's.
REPLIES = {
    "SendMessageV2": "SendMessageResponseHeader",
    "SendBatchMessage": "SendMessageResponseHeader",
    "SendReplyMessage": "SendMessageResponseHeader",
    "SendReplyMessageV2": "SendMessageResponseHeader",
    "LitePullMessage": "PullMessageResponseHeader",
    "SearchOffsetByTimestamp": "SearchOffsetResponseHeader",
    "PeekMessage": "PopMessageResponseHeader",
    "ChangeMessageInvisibletime": "ChangeInvisibleTimeResponseHeader",
    "GetAllSubscriptionGroupConfig": "GetAllSubscriptionGroupResponseHeader",
    "GetKvConfig": "GetKVConfigResponseHeader",
    "ExchangeBrokerHaInfo": "ExchangeHAInfoResponseHeader",
    "GetBrokerClusterAclInfo": "GetBrokerAclConfigResponseHeader",
    "ControllerAlterSyncStateSet": "AlterSyncStateSetResponseHeader",
    "ControllerElectMaster": "ElectMasterResponseHeader",
    "ControllerRegisterBroker": "RegisterBrokerToControllerResponseHeader",
    "ControllerGetReplicaInfo": "GetReplicaInfoResponseHeader",
    "ControllerGetMetadataInfo": "GetMetaDataResponseHeader",
    "ControllerGetNextBrokerId": "GetNextBrokerIdResponseHeader",
    "ControllerApplyBrokerId": "ApplyBrokerIdResponseHeader",
}

# Header classes in the jar that no code uses.
UNUSED = {
    "CheckTransactionStateResponseHeader",
    "InitConsumerOffsetRequestHeader",
    "StatisticsMessagesRequestHeader",
    "RegisterOrderTopicRequestHeader",
    "RegisterFilterServerRequestHeader",
    "RegisterFilterServerResponseHeader",
    "RegisterMessageFilterClassRequestHeader",
}

# Response codes of 4.9 whose numbers are those of pops since 5.0. No server here answers with them.
TAKEN_RESPONSE_CODES = {
    "UPDATE_AND_CREATE_ACL_CONFIG_FAILED",
    "DELETE_ACL_CONFIG_FAILED",
    "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED",
}

# Headers that official clients and servers encode by code of their own, on the path of every message, with the fields
# that this code leaves out.
FAST_HEADERS: Mapping[str, set[str]] = {
    "PullMessageRequestHeader": set(),
    "PullMessageResponseHeader": set(),
    "SendMessageRequestHeaderV2": {"lo", "ns", "nsd", "bname", "oway"},
    "SendMessageResponseHeader": set(),
}

# Read from the ext fields by the official server though no header class has them.
BESIDE_THE_HEADER = {
    "QueryMessage": {"_UNIQUE_KEY_QUERY"},
    "HeartbeatReply": {"IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"},
    "SetCommitlogReadMode": {"READ_AHEAD_MODE"},
    "SwitchTimerEngine": {"E_T"},
    "RecallMessageReply": {"MSG_REGION"},
}

# Marked @CFNotNull, yet the official server does without: older clients leave them out.
NOT_NEEDED = {
    ("GetAllTopicConfig", "topicSeq"),
    ("GetAllTopicConfigReply", "totalTopicNum"),
    ("GetAllSubscriptionGroupConfig", "groupSeq"),
    ("GetAllSubscriptionGroupConfigReply", "totalGroupNum"),
    ("PullMessage", "commitOffset"),
    ("PullMessage", "suspendTimeoutMillis"),
    ("PullMessage", "subVersion"),
    ("LitePullMessage", "commitOffset"),
    ("LitePullMessage", "suspendTimeoutMillis"),
    ("LitePullMessage", "subVersion"),
    ("EndTransaction", "msgId"),
    ("UpdateGlobalWhiteAddrsConfig", "aclFileFullPath"),
}

JAVA_TYPES = {
    "String": "str",
    "BoundaryType": "str",
    "int": "i32",
    "Integer": "i32",
    "long": "i64",
    "Long": "i64",
    "AtomicLong": "i64",
    "boolean": "bool",
    "Boolean": "bool",
    "double": "float",
}
PRIMITIVE_ZEROS = {"int": 0, "long": 0, "boolean": False}


def type_name(kind: Any) -> str:
    """A declared type as this test compares it: without Optional, Java integers by their alias."""
    text = str(kind) if not isinstance(kind, type) else kind.__name__
    text = re.sub(r"typing\.Annotated\[int, JavaInteger\(low=-\d+, high=(\d+)\)\]", _alias, text)
    return (
        text.replace(" | None", "")
        .removeprefix("typing.Optional[")
        .removesuffix("]" if "Optional" in text else "")
    )


def _alias(match: re.Match[str]) -> str:
    return {32767: "i16", 2**31 - 1: "i32", 2**63 - 1: "i64"}[int(match.group(1))]


def official_header_of(request: type[Request[Any]]) -> str | None:
    if request.code in SHARED:
        return SHARED[request.code]
    names = [name for name, header in HEADERS.items() if header.get("code") == request.code]
    by_name = f"{request.__name__}RequestHeader"
    unannotated = by_name if by_name in HEADERS else None
    return next((name for name in names if not name.endswith("ResponseHeader")), unannotated)


def official_reply_of(request: type[Request[Any]]) -> str:
    return REPLIES.get(request.__name__, f"{request.__name__}ResponseHeader")


def all_bodies() -> list[type[JsonBody]]:
    modules = [
        import_module(f"remoting.bodies.{found.name}") for found in iter_modules(remoting.bodies.__path__)
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, JsonBody) and value.__module__ == module.__name__
    ]


def compare(declared: type[Header], official: str) -> list[str]:
    """Return the differences between the declared fields and the official ones."""
    theirs = {item["name"]: item for item in HEADERS[official]["fields"]}
    ours = {item.wire: item for item in declared.WIRE_FIELDS}
    extra = set(ours) - set(theirs) - BESIDE_THE_HEADER.get(declared.__name__, set())
    found = [f"{wire} is not official" for wire in extra]
    found += [f"{wire} is missing" for wire in set(theirs) - set(ours)]
    for wire in set(ours) & set(theirs):
        found += difference(declared, ours[wire], theirs[wire])
    return found


def difference(declared: type[Header], ours: Field, theirs: dict[str, Any]) -> list[str]:
    if ours.required and theirs.get("nullable"):
        return [f"{ours.wire} is required, officially @CFNullable"]
    wanted = JAVA_TYPES[theirs["type"]]
    if type_name(ours.type) != wanted:
        return [f"{ours.wire} is {type_name(ours.type)}, officially {wanted}"]
    if (declared.__name__, ours.wire) in NOT_NEEDED:
        return [f"{ours.wire} is required"] if ours.required else []
    if ours.wire == "invokeTime":  # officially the time at which the header is made
        return []
    if ours.required:
        return [] if theirs.get("not_null") else [f"{ours.wire} is required, officially it is not"]
    zero = PRIMITIVE_ZEROS.get(theirs["type"])
    official = java_value(theirs) if "default" in theirs else zero
    if ours.default != official and not (theirs.get("not_null") and zero is None and official is None):
        return [f"{ours.wire} defaults to {ours.default!r}, officially {official!r}"]
    return (
        [f"{ours.wire} may be absent, officially not"] if theirs.get("not_null") and official is None else []
    )


def java_value(field: dict[str, Any]) -> Any:
    text = field["default"]
    kind = JAVA_TYPES[field["type"]]
    return text == "true" if kind == "bool" else text if kind == "str" else int(text)


def test_every_official_code_is_declared_or_has_a_reason() -> None:
    assert set(CODES.values()) == set(OFFICIAL_REQUESTS) | set(NOT_SERVED)
    assert not set(REQUESTS) & set(NOT_SERVED)
    assert all(len(request.reason) > 20 for request in NOT_SERVED.values())


def test_private_codes_are_far_from_the_official_ones() -> None:
    assert max(CODES.values()) < PRIVATE_CODES.start // 2
    assert set(REQUESTS) - set(OFFICIAL_REQUESTS)


def test_names_are_the_official_ones() -> None:
    declared = {code: request.NAME for code, request in OFFICIAL_REQUESTS.items()}
    others = {code: request.name for code, request in NOT_SERVED.items()}
    assert declared | others == {code: name for name, code in CODES.items()}


def test_every_official_response_code_has_its_name_and_number() -> None:
    official: Mapping[str, int] = ChainMap(*OFFICIAL["response_codes"].values())
    ours = {code.name: int(code) for code in ResponseCode}
    assert ours == {name: code for name, code in official.items() if name not in TAKEN_RESPONSE_CODES}
    assert all(official[name] in ours.values() for name in TAKEN_RESPONSE_CODES)


@pytest.mark.parametrize("request_type", OFFICIAL_REQUESTS.values(), ids=lambda kind: kind.__name__)
def test_request_headers_are_the_official_ones(request_type: type[Request[Any]]) -> None:
    official = official_header_of(request_type)
    if official is None:
        assert {item.wire for item in request_type.WIRE_FIELDS} == BESIDE_THE_HEADER.get(
            request_type.__name__, set()
        )
    else:
        assert compare(request_type, official) == []


@pytest.mark.parametrize("request_type", OFFICIAL_REQUESTS.values(), ids=lambda kind: kind.__name__)
def test_reply_headers_are_the_official_ones(request_type: type[Request[Any]]) -> None:
    official = official_reply_of(request_type)
    reply = request_type.REPLY
    if official not in UNUSED and HEADERS.get(official, {}).get("fields"):
        assert reply is not None
        assert compare(reply, official) == []
    elif reply is not None:
        assert {item.wire for item in reply.WIRE_FIELDS} == BESIDE_THE_HEADER.get(reply.__name__, set())


def test_every_official_header_is_used() -> None:
    used = {official_header_of(request) for request in OFFICIAL_REQUESTS.values()}
    used |= {official_reply_of(request) for request in OFFICIAL_REQUESTS.values()}
    with_fields = {name for name, header in HEADERS.items() if header["fields"]}
    assert with_fields - used - UNUSED == set()
    assert set(HEADERS) >= UNUSED


@pytest.mark.parametrize("name", FAST_HEADERS)
def test_official_codecs_of_their_own_write_and_read_the_fields_and_require_none(name: str) -> None:
    """So a header in such a form has the same names, which the tests above compare."""
    header = HEADERS[name]
    names = {field["name"] for field in header["fields"]} - FAST_HEADERS[name]
    assert set(header["fast"]["written"]) == set(header["fast"]["read"]) == names
    assert header["fast"]["required"] == []


def test_no_other_header_has_a_codec_of_its_own() -> None:
    assert {name for name, header in HEADERS.items() if "fast" in header} == set(FAST_HEADERS)


def test_requests_with_a_routed_header_have_its_base() -> None:
    for request in REQUESTS.values():
        if request.__mro__[1].__name__ == "TopicRequest":
            assert {"topic", "lo", "bname"} <= {item.wire for item in request.WIRE_FIELDS} | {"topic"}


@pytest.mark.parametrize(
    "body", [body for body in all_bodies() if body.__name__ in BODIES], ids=lambda body: body.__name__
)
def test_bodies_have_the_official_names_and_types(body: type[JsonBody]) -> None:
    official = {name: kind for name, kind in BODIES[body.__name__].items() if not name.endswith("StampStr")}
    assert {item.wire for item in body.FIELDS} == set(official)
    for item in body.FIELDS:
        simple = JAVA_TYPES.get(official[item.wire])
        assert simple is None or type_name(item.type) == simple, item.wire


def test_most_bodies_are_compared() -> None:
    compared = {body.__name__ for body in all_bodies() if body.__name__ in BODIES}
    assert len(compared) > 80


def text() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="$"), max_size=8)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of one declared field type."""
    origin, arguments, _ = remoting.json_body._split(kind)
    if hasattr(arguments, "low"):
        return st.integers(arguments.low, arguments.high)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if issubclass(origin, Declared):
        return instances_of(origin)
    simple = {str: text(), bool: st.booleans(), float: st.floats(allow_nan=False, allow_infinity=False)}
    return simple[origin]


def deferred_values(kind: Any) -> st.SearchStrategy[Any]:
    """Return the strategy of a type, found when it is first drawn from; types may contain themselves."""
    return st.deferred(lambda: values_of(kind))


def instances_of(kind: type[Declared]) -> st.SearchStrategy[Any]:
    """Instances with their required fields, and any of the others."""
    hidden = {"body", "code", "remark"} if issubclass(kind, Header) else set()
    fields = [item for item in kind.FIELDS if item.name not in hidden]
    required = {item.name: deferred_values(item.type) for item in fields if item.required}
    optional = {item.name: deferred_values(item.type) for item in fields if not item.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))


QUICK = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


WIRES = [
    pytest.param(kind, binary, id=f"{kind.__name__}-{'binary' if binary else 'json'}")
    for kind in REQUESTS.values()
    for binary in (False, True)
    if not binary or kind.code <= 0x7FFF  # the binary header has 16 bits for the code
]


@pytest.mark.parametrize(("request_type", "binary"), WIRES)
def test_requests_survive_the_wire(request_type: type[Request[Any]], binary: bool) -> None:
    @QUICK
    @given(instances_of(request_type))
    def request_survives(request: Request[Any]) -> None:
        frame = encode_command(request.to_command(7, binary=binary))
        assert request_type.from_command(decode_frame(frame, 4, len(frame))) == request

    request_survives()


@pytest.mark.parametrize(
    "reply_type",
    dict.fromkeys(request.REPLY for request in REQUESTS.values() if request.REPLY is not None),
    ids=lambda kind: kind.__name__,
)
def test_replies_survive_as_text(reply_type: type[Header]) -> None:
    @QUICK
    @given(instances_of(reply_type))
    def reply_survives(reply: Header) -> None:
        again = reply_type.from_ext(reply.to_ext())
        if reply_type.BODY is not None and reply.data is not None:  # type: ignore[attr-defined]
            again.data = reply_type.BODY.from_json(reply.encode_body())  # type: ignore[attr-defined]
        assert again == reply

    reply_survives()


def test_an_election_that_finds_the_master_alive_has_an_answer() -> None:
    answer = Command(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, 7, 1, {"masterBrokerId": "2"})
    answer.remark = "still alive"
    reply = ControllerElectMaster(cluster_name="C", broker_name="a", broker_id=1).read_reply(answer)
    assert (reply.master_broker_id, reply.code, reply.remark) == (2, 2011, "still alive")


def test_every_default_is_immutable_or_made_anew() -> None:
    for kind in [*REQUESTS.values(), *all_bodies()]:
        for item in kind.FIELDS:
            assert item.default is MISSING or item.default is None or item.default.__hash__ is not None
