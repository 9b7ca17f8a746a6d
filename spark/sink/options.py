"""Options of the sink, and the parsed form that is pickled for the executors.

Options for addresses, credentials and TLS live in `spark.endpoint`.
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
    Option("topic", text, None, "Destination topic of all rows; the column `topic` is ignored."),
    Option("producerGroup", text, "SPARK_SINK", "Producer group sent to the broker."),
    Option("sendTimeoutMs", integer(1), 10_000, "Timeout of one send, ms."),
    Option("retryTimes", integer(0), 5, "Retries of a failed send, each after a new route lookup."),
    Option("retryIntervalMs", integer(0), 200, "Pause before the first retry, ms. Doubles with each retry."),
    Option(
        "maxMessageSize",
        integer(1),
        DEFAULT_MAX_MESSAGE_BYTES,
        "Maximum body size, bytes; the broker's maxMessageSize.",
    ),
    Option(
        "sendBatchBytes",
        integer(0),
        512 * 1024,
        "Maximum size of a batch of rows for one queue, bytes; 0: every row is sent alone.",
    ),
    Option(
        "compressBodyAbove", integer(0), 0, "Compress bodies larger than this with zlib, bytes; 0: never."
    ),
    Option(
        "dedupKey",
        text,
        "SPARK_DEDUP_ID",
        "Property that holds the deduplication id, which the unique key (msgId) is derived from. "
        "`msgId`: unique key only; `off`: random unique key.",
    ),
    Option(
        "dedupPrefix",
        text,
        None,
        "Prefix of deduplication ids, instead of the query's id or a batch write's random id: a batch job with a "
        "fixed prefix gets the same ids when it is run again.",
    ),
    Option(
        "delivery",
        choice(AT_LEAST_ONCE, STAGED),
        AT_LEAST_ONCE,
        "`staged`: messages become visible exactly once, when the batch commits. Needs rmq-gateway with "
        "`stagedPublish`.",
    ),
    Option("stagingBroker", text, None, "Broker that stages and publishes; required if there are several."),
    Option("publishTimeoutMs", integer(1), 600_000, "Timeout of publishing a staged batch, ms."),
)
_LOOKUP_PREFIX: Final = "fetchOffset."
OPTIONS: Final = (
    *(option for option in ENDPOINT_OPTIONS if not option.name.startswith(_LOOKUP_PREFIX)),
    *OWN_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """Parsed options that every task needs. Times are in s, sizes in bytes."""

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
    """Parse the sink's options. Raises OptionError."""
    values = read_options(raw, OPTIONS, SINK)
    for error in (
        topic_name_error(values["topic"]) if values["topic"] else None,
        group_name_error(values["producerGroup"]),
    ):
        if error is not None:
            raise OptionError(f"{SINK}: {error}")
    key = values["dedupKey"]
    if key in RESERVED or any(c in key for c in "\x01\x02"):
        raise OptionError(f"{SINK}: option dedupKey={key}: the name is reserved by the protocol")
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
    """Return the options with lookups retried as often as sends."""
    look_ups = {"numRetries": values["retryTimes"], "retryIntervalMs": values["retryIntervalMs"]}
    return {**values, **{f"{_LOOKUP_PREFIX}{name}": value for name, value in look_ups.items()}}
