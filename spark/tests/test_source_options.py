"""Options: Kafka's names, rocketmq-spark's aliases, and error texts."""

import pickle

import pytest

from spark.cluster import Queue
from spark.errors import OptionError
from spark.source.offset_json import offsets_from_json, offsets_to_json
from spark.source.options import (
    OPTIONS,
    read_spec,
    refuse_batch_options,
    refuse_stream_options,
    source_options,
)

BASE = {"nameserver": "127.0.0.1:9876", "subscribe": "orders"}


def given(**options: str) -> dict[str, object]:
    return source_options({**BASE, **options})


def test_old_names_mean_the_same() -> None:
    values = source_options(
        {"nameServer": "h:1", "topic": "orders", "pullBatchSize": "64", "pullTimeoutMs": "9"}
    )
    assert values["subscribe"] == ("orders",)
    assert values["pullBatchSize"] == 64
    assert values["requestTimeoutMs"] == 9
    assert source_options({**BASE, "kafka.group.id": "g"})["consumerGroup"] == "g"


def test_no_two_options_share_a_name() -> None:
    every = [name.lower() for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribePattern": "o.*"}, "subscribe and subscribePattern contradict each other"),
        ({"startingOffset": "latest"}, 'unknown option "startingOffset"; did you mean "startingOffsets"?'),
        ({"startingOffsets": "newest"}, "must be earliest, latest, committed or JSON like"),
        ({"startingOffsets": '{"orders": {"a": {"0": -3}}}'}, "orders@a:0 cannot be at -3"),
        ({"startingOffsets": '{"orders": {"a": [0]}}'}, "must look like"),
        (
            {"startingOffsets": '{"orders": {"a": {"0": true}}}'},
            "is not a queue number with an integer offset",
        ),
        ({"endingOffsets": "earliest"}, "must be latest or JSON like"),
        ({"endingOffsets": '{"orders": {"a": {"0": -2}}}'}, "cannot be at -2"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradict each other"),
        ({"startingOffsets": "committed"}, "option startingOffsets requires consumerGroup"),
        ({"commitOffsetsToBroker": "true"}, "option commitOffsetsToBroker requires consumerGroup"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions is greater than maxPartitions"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is greater than maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "0"}, "expected a whole number, at least 1"),
        ({"maxTriggerDelay": "soon"}, "must be a number with a unit"),
        ({"columns": "body,bodie"}, "there is no column bodie"),
        ({"subExpressionType": "SQL93"}, 'expected "TAG" or "SQL92"'),
        ({"accessKey": "who"}, "must be given together"),
    ],
)
def test_what_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match="rocketmq: ") as refused:
        read_spec(given(**options))
    assert message in str(refused.value)


def test_one_way_to_choose_topics_is_needed() -> None:
    with pytest.raises(
        OptionError, match="one of the options subscribe, subscribePattern, assign is required"
    ):
        source_options({"nameServer": "h:1"})
    with pytest.raises(OptionError, match="nameServer is required"):
        read_spec(source_options({"subscribe": "t"}))
    for wrong in ("[1]", "{}", '{"t": {}}', '{"t": {"a": []}}', '{"t": {"a": ["x"]}}', '{"t": {"a": [-1]}}'):
        with pytest.raises(OptionError, match="option assign: "):
            source_options({"nameServer": "h:1", "assign": wrong})
    with pytest.raises(OptionError, match="is not a regular expression"):
        source_options({"nameServer": "h:1", "subscribePattern": "("})


def test_what_only_a_stream_or_a_batch_has_is_refused_in_the_other() -> None:
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger only applies to a stream"):
        refuse_stream_options(given(maxOffsetsPerTrigger="5"))
    with pytest.raises(OptionError, match="endingOffsets only applies to a batch"):
        refuse_batch_options(given(endingOffsets="latest"))
    with pytest.raises(OptionError, match="reads nothing"):
        refuse_stream_options(given(startingOffsets="latest"))
    with pytest.raises(OptionError, match="startingTimestamp is after endingTimestamp"):
        refuse_stream_options(given(startingTimestamp="2", endingTimestamp="1"))
    where = '{"orders": {"a": {"0": %d}}}'
    with pytest.raises(OptionError, match="would start at 7 and end at 5"):
        refuse_stream_options(given(startingOffsets=where % 7, endingOffsets=where % 5))


def test_secrets_are_not_printed() -> None:
    spec = read_spec(given(accessKey="who", secretKey="s3cret", securityToken="t0ken"))
    assert "s3cret" not in repr(spec)
    assert "t0ken" not in repr(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_kafkas_columns_have_headers_only_when_asked() -> None:
    assert read_spec(given()).include_properties
    assert not read_spec(given(schema="kafka")).include_properties
    assert read_spec(given(schema="kafka", includeHeaders="true")).include_properties


def test_offsets_are_always_in_the_same_order() -> None:
    offsets = {Queue("b", "x", 10): 1, Queue("b", "x", 2): 2, Queue("a", "y", 0): 3, Queue("a", "x", 0): 4}
    nested = offsets_to_json(offsets)
    assert [*nested] == ["a", "b"]
    assert [*nested["a"]] == ["x", "y"]
    assert [*nested["b"]["x"]] == ["2", "10"]
    assert offsets_from_json(nested) == offsets
    assert str(offsets_to_json(dict(reversed(offsets.items())))) == str(nested)
