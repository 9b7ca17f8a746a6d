"""Tables on disk load without the entries that cannot be read, and are saved without values that cannot be written."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from codec import fastjson
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.delayed.timer_metrics import TimerMetrics
from gateway.broker.filters.consumer_filters import ConsumerFilterTable
from gateway.broker.filters.filter_cache import FilterCache
from gateway.broker.pop.queue_assignment import RequestModes
from gateway.broker.topics.topic_table import TopicDefaults, TopicTable
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ChangingTable
from gateway.runtime.saved_tables import (
    MAX_LOGGED_ENTRIES,
    dump_table,
    load_table,
    parse_entries,
    parse_version,
)
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from storage.files import MemoryFiles

FILTER = {
    "clientVersion": 1, "bornTime": 5, "deadTime": 0, "consumerGroup": "g", "expression": "a > 5", "topic": "t",
}  # fmt: skip
TABLES: dict[str, tuple[Callable[[Any], Any], str, Any, Callable[[Any], set[str]]]] = {
    "topics": (
        lambda file: TopicTable(file, FakeClock(), TopicDefaults("c1", "b1")),
        "topicConfigTable",
        {"topicName": "x", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "attributes": {"a": "b"}},
        lambda table: set(table.table),
    ),
    "groups": (
        lambda file: GroupTable(file, FakeClock()),
        "subscriptionGroupTable",
        {"groupName": "x", "retryMaxTimes": 3},
        lambda table: set(table.table),
    ),
    "forbidden": (
        lambda file: GroupTable(file, FakeClock()),
        "forbiddenTable",
        {"t": 4},
        lambda table: {group for group, topics in table.forbidden.items() if topics},
    ),
    "offsets": (
        lambda file: ConsumerOffsets(file, FakeClock()),
        "offsetTable",
        {"0": 5},
        lambda table: {key for key, queues in table.table.items() if queues},
    ),
    "filters": (
        lambda file: ConsumerFilterTable(file, FakeClock(), FilterCache(BrokerLimits()), BrokerLimits()),
        "filterDataByTopic",
        {"groupFilterData": {"g": FILTER}},
        lambda table: {data.topic for data in table.of_group("g")},
    ),
    "timer metrics": (
        lambda file: TimerMetrics(file, FakeClock()),
        "timingCount",
        {"count": 5, "timeStamp": 7},
        lambda table: set(json.loads(table.to_json())["timingCount"]),
    ),
    "request modes": (
        lambda file: RequestModes(file, BrokerLimits()),
        "messageRequestModeMap",
        {"g": {"mode": "POP", "popShareQueueNum": 1}},
        lambda table: {topic for topic, modes in table.table.items() if modes},
    ),
}
UNREADABLE = (
    None, 5, "x", [], [[]], {"count": "x"}, {"count": 1 << 63}, {"0": None}, {"0": "x"}, {"x": 5}, {"0": 1 << 63},
    {"0": 1e300}, {"t": 1 << 31}, {"t": [1]}, {"groupFilterData": None}, {"groupFilterData": {"g": None}},
    {"groupFilterData": {"g": {**FILTER, "bornTime": "x"}}}, {"groupFilterData": {"g": {**FILTER, "expression": 5}}},
    {"topicName": "x", "readQueueNums": 1 << 31}, {"topicName": "x", "perm": []}, {"groupName": "x", "brokerId": "y"},
    {"g": {"popShareQueueNum": 1 << 40}}, {"g": 7},
)  # fmt: skip


def load(
    name: str, content: dict[str, Any] | bytes, files: MemoryFiles | None = None
) -> tuple[Any, set[str]]:
    """Return a table that was loaded from a file, and the names of its entries."""
    build, _, _, names = TABLES[name]
    files = files or MemoryFiles()
    text = content if isinstance(content, bytes) else fastjson.dumps(content)
    files.write_small("/config/table.json", text)
    table = build(memory_config_file(files=files))
    return table, names(table)


@pytest.mark.parametrize("bad", UNREADABLE, ids=lambda bad: json.dumps(bad)[:40])
@pytest.mark.parametrize("name", TABLES)
def test_an_entry_of_any_kind_costs_no_other(name: str, bad: object) -> None:
    _, member, good, _ = TABLES[name]
    _, names = load(name, {member: {"first": good, "bad": bad, "last": good}, "dataVersion": {"counter": 7}})
    assert names >= {"first", "last"}


@pytest.mark.parametrize("name", TABLES)
def test_numbers_of_any_length_cost_their_entry_only(name: str, caplog: pytest.LogCaptureFixture) -> None:
    _, member, good, _ = TABLES[name]
    text = json.dumps({member: {"first": good, "bad": good, "last": good}}).encode()
    at = text.index(b'"bad"')
    number = next(number for number in (b": 5", b": 4", b": 3", b": 1") if number in text[at:])
    for long in (b"9" * 400, b"9" * 5_000, b"-" + b"9" * 5_000):
        caplog.clear()
        _, names = load(name, text[:at] + text[at:].replace(number, b": " + long, 1))
        assert names >= {"first", "last"}
        assert "bad" not in names
        assert "cannot be read and is left out" in caplog.text


@pytest.mark.parametrize("version", [5, "x", [], {"counter": "x"}, {"timestamp": 1 << 63}, {"counter": None}])
@pytest.mark.parametrize("name", TABLES)
def test_an_unreadable_version_costs_no_entry(name: str, version: object) -> None:
    _, member, good, _ = TABLES[name]
    assert "first" in load(name, {member: {"first": good}, "dataVersion": version})[1]


@pytest.mark.parametrize("content", [b"[]", b"5", b"{", b"\xff", b'{"a":}', b"null"])
@pytest.mark.parametrize("name", TABLES)
def test_a_file_that_is_no_table_is_named(name: str, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"/config/table\.json cannot be read"):
        load(name, content)


@pytest.mark.parametrize("name", TABLES)
def test_a_member_that_is_no_map_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON object"):
        load(name, {TABLES[name][1]: [1]})


def test_one_bad_offset_costs_one_queue() -> None:
    table, _ = load("offsets", b'{"offsetTable":{"t@g":{0:5,1:null,2:"7","x":3,4:9223372036854775808,5:6}}}')
    assert table.table == {"t@g": {0: 5, 2: 7, 5: 6}}


def test_a_name_is_that_of_its_key() -> None:
    _, _, good, _ = TABLES["topics"]
    table, _ = load("topics", {"topicConfigTable": {"real": good}})
    assert table.get("real").topic_name == "real"
    assert "x" not in table


def test_a_topic_of_thousands_of_millions_of_queues_has_a_number_that_can_be_listed() -> None:
    most = {"topicName": "x", "readQueueNums": (1 << 31) - 1, "writeQueueNums": (1 << 31) - 1}
    table, _ = load("topics", {"topicConfigTable": {"x": most}})
    assert (table.get("x").read_queue_nums, table.get("x").write_queue_nums) == (65_536, 65_536)


def test_thousands_of_bad_entries_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    entries = {str(number): None for number in range(1000)} | {"good": 1}
    parsed = parse_entries("table", entries, lambda key, value: (key, 1 + value))
    assert parsed == {"good": 2}
    assert len(caplog.records) == MAX_LOGGED_ENTRIES + 1
    assert caplog.records[-1].__dict__["entries"] == 1000


def test_a_long_key_or_reason_is_logged_shortened(caplog: pytest.LogCaptureFixture) -> None:
    def fail(key: object, value: object) -> tuple[str, int]:
        raise ValueError(value)

    parse_entries("table", {"k" * 50_000: "v" * 50_000}, fail)
    assert len(caplog.records[0].__dict__["entry"]) < 200
    assert len(caplog.records[0].__dict__["reason"]) < 200


def test_no_version_is_none() -> None:
    assert parse_version(None) is None
    assert load_table(b'{"a":1}') == {"a": 1}


def test_values_that_json_cannot_hold_cost_no_other(caplog: pytest.LogCaptureFixture) -> None:
    table = {
        "version": {"counter": 1 << 70},
        "table": {"a@g": {0: 1 << 64, 1: 5}, "b@g": {0: 7}, "c@g": {"list": [1, 1 << 80]}, "\ud800": {0: 1}},
    }
    written = fastjson.loads(dump_table("offsets", table))
    assert written == {"version": {}, "table": {"a@g": {1: 5}, "b@g": {0: 7}, "c@g": {}, "?": {0: 1}}}
    assert caplog.text.count("cannot be written") == 1


def test_an_offset_that_cannot_be_written_keeps_no_other_from_being_saved() -> None:
    files = MemoryFiles()
    table = ConsumerOffsets(memory_config_file(files=files), FakeClock())
    table.commit_offset("g", "t", 0, 1 << 70)
    table.commit_offset("g", "t", 1, 7)
    table.persist()
    again = ConsumerOffsets(memory_config_file(files=files), FakeClock())
    assert again.table == {"t@g": {1: 7}}


def test_a_table_that_could_not_be_encoded_is_saved_later() -> None:
    class Failing(ChangingTable):
        failures = 1

        def to_json(self) -> bytes:
            if self.failures:
                self.failures -= 1
                raise ValueError("by hand")
            return b"saved"

    files = MemoryFiles()
    table = Failing(memory_config_file(files=files))
    table._dirty = True
    with pytest.raises(ValueError, match="by hand"):
        table.persist()
    table.persist()
    assert files.read_small("/config/table.json") == b"saved"
