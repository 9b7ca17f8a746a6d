"""The options of the sink, and what they come to; picklable, since executors need it.

Not responsible for addresses, credentials and TLS (`spark.endpoint` is).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from codec.properties import RESERVED
from spark.endpoint import OPTIONS as ENDPOINT_OPTIONS
from spark.endpoint import ClusterEndpoint
from spark.errors import OptionError
from spark.options import Option, choice, integer, read_options, text
from spark.sink.dedup_ids import DEDUP_OFF, DEDUP_UNIQUE_KEY
from spark.sink.name_checks import group_name_error, topic_name_error

SINK: Final = "rocketmq sink"
AT_LEAST_ONCE: Final = "at-least-once"
STAGED: Final = "staged"
DEFAULT_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024

OWN_OPTIONS: Final = (
    Option("topic", text, None, "Where all rows go, whatever the column `topic` says."),
    Option("producerGroup", text, "SPARK_SINK", "The producer group the broker is told."),
    Option("sendTimeoutMs", integer(1), 10_000, "How long the answer to one send may take, ms."),
    Option("retryTimes", integer(0), 5, "How often a send is tried again, with routes looked up anew."),
    Option("retryIntervalMs", integer(0), 200, "Pause before the first of them, ms; doubled at each."),
    Option(
        "maxMessageSize",
        integer(1),
        DEFAULT_MAX_MESSAGE_BYTES,
        "The largest body, bytes, as the broker's maxMessageSize says.",
    ),
    Option(
        "sendBatchBytes",
        integer(0),
        512 * 1024,
        "Rows of one queue are sent together up to this size; 0 sends each alone.",
    ),
    Option("compressBodyAbove", integer(0), 0, "Bodies of more bytes are compressed (zlib); 0 for none."),
    Option(
        "dedupKey",
        text,
        "SPARK_DEDUP_ID",
        "Property that holds the id by which duplicates are known, which the unique key (msgId) is as well; "
        "`msgId`: only there; `off`: nowhere.",
    ),
    Option(
        "dedupPrefix",
        text,
        None,
        "What ids begin with instead of the query's id, or a batch write's random one: a batch job that is "
        "run again has its ids again.",
    ),
    Option(
        "delivery",
        choice(AT_LEAST_ONCE, STAGED),
        AT_LEAST_ONCE,
        "`staged`: messages appear when the batch commits, and once; for rmq-gateway with `stagedPublish`.",
    ),
    Option("stagingBroker", text, None, "Which broker stages and publishes; needed where there are several."),
    Option("publishTimeoutMs", integer(1), 600_000, "How long publishing a staged batch may take, ms."),
)
_LOOKUP_PREFIX: Final = "fetchOffset."
OPTIONS: Final = (
    *(option for option in ENDPOINT_OPTIONS if not option.name.startswith(_LOOKUP_PREFIX)),
    *OWN_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """What every task needs to know of the options; times in s, sizes in bytes."""

    endpoint: ClusterEndpoint
    topic: str | None
    producer_group: str
    timeout_s: float
    retries: int
    retry_interval_s: float
    max_body_bytes: int
    batch_bytes: int
    compress_above: int
    dedup_property: str | None
    dedup_ids: bool
    dedup_prefix: str | None
    staged: bool
    staging_broker: str | None
    publish_timeout_s: float


def sink_spec(raw: Mapping[str, str]) -> SinkSpec:
    """Raises OptionError."""
    values = read_options(raw, OPTIONS, SINK)
    for fault in (
        topic_name_error(values["topic"]) if values["topic"] else None,
        group_name_error(values["producerGroup"]),
    ):
        if fault is not None:
            raise OptionError(f"{SINK}: {fault}")
    key = values["dedupKey"]
    if key in RESERVED or any(c in key for c in "\x01\x02"):
        raise OptionError(f"{SINK}: option dedupKey={key}: the protocol keeps that name for itself")
    return SinkSpec(
        endpoint=ClusterEndpoint.from_options(_with_lookup_retries(values), SINK),
        topic=values["topic"],
        producer_group=values["producerGroup"],
        timeout_s=values["sendTimeoutMs"] / 1000,
        retries=values["retryTimes"],
        retry_interval_s=values["retryIntervalMs"] / 1000,
        max_body_bytes=values["maxMessageSize"],
        batch_bytes=min(values["sendBatchBytes"], values["maxMessageSize"]),
        compress_above=values["compressBodyAbove"],
        dedup_property=None if key.lower() in (DEDUP_OFF, DEDUP_UNIQUE_KEY.lower()) else key,
        dedup_ids=key.lower() != DEDUP_OFF,
        dedup_prefix=values["dedupPrefix"],
        staged=values["delivery"] == STAGED,
        staging_broker=values["stagingBroker"],
        publish_timeout_s=values["publishTimeoutMs"] / 1000,
    )


def _with_lookup_retries(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked besides sends is tried again as often as they are."""
    look_ups = {"numRetries": values["retryTimes"], "retryIntervalMs": values["retryIntervalMs"]}
    return {**values, **{f"{_LOOKUP_PREFIX}{name}": value for name, value in look_ups.items()}}
