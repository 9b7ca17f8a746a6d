"""Picklable descriptions that the driver makes for tasks: the offset ranges to read, and the reading options."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark.endpoint import Address, ClusterEndpoint

if TYPE_CHECKING:
    import pyarrow as pa

    from spark.schema import Column

RANGES_SCHEMA: Final = "ranges"
"""Schema of rows that describe offset ranges instead of messages; see `spark.pull.unread`."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Half-open interval [start, end) of queue offsets of one queue, with the address its broker was found at."""

    topic: str
    broker: str
    address: Address
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """Reading options, the same for all tasks of a query.

    - `schema` is rocketmq, kafka, or `RANGES_SCHEMA`, for which no messages are read. `columns` selects some of its
      columns in this order (None: all).
    - Without `include_body` or `include_properties` the columns stay, but are null.
    - `expression` filters at the broker.
    - A missing message raises DataLossError if `fail_on_data_loss`; otherwise it is skipped and logged.
    - A pull asks for at most `pull_batch_size` messages; brokers may be configured to send fewer. Up to
      `pipeline_depth` pulls are in flight.
    - About `arrow_batch_bytes` bytes of stored messages make one record batch.
    - `max_messages_per_second` (0: no limit) applies per task.
    - `verify_body_crc` checks bodies as stock clients do.
    """

    endpoint: ClusterEndpoint
    schema: str = "rocketmq"
    include_body: bool = True
    include_properties: bool = True
    columns: tuple[str, ...] | None = None
    expression: str = "*"
    expression_type: str = "TAG"
    fail_on_data_loss: bool = True
    pull_batch_size: int = 1024
    pipeline_depth: int = 8
    arrow_batch_bytes: int = 4 << 20
    max_messages_per_second: int = 0
    verify_body_crc: bool = True

    @property
    def is_filtered(self) -> bool:
        """Tell whether the broker may leave out messages."""
        return not (self.expression_type == "TAG" and self.expression.strip() in ("", "*"))

    @property
    def wants_body(self) -> bool:
        """Tell whether any column contains the body."""
        return self.include_body and any(
            column.name in ("body", "value") for column in self.selected_columns()
        )

    def selected_columns(self) -> "tuple[Column, ...]":
        """Return the columns of every batch. Raises KeyError for a column that the schema does not have."""
        from spark.schema import COLUMNS, KAFKA_COLUMNS, RANGE_COLUMNS

        table = {"kafka": KAFKA_COLUMNS, RANGES_SCHEMA: RANGE_COLUMNS}.get(self.schema, COLUMNS)
        if self.columns is None:
            return table
        by_name = {column.name: column for column in table}
        return tuple(by_name[name] for name in self.columns)

    def arrow_schema(self) -> "pa.Schema":
        """Return the Arrow schema of every batch. Raises KeyError for an unknown column."""
        from spark.schema import arrow_schema

        return arrow_schema(self.selected_columns())

    def spark_ddl(self) -> str:
        """Return the schema of every batch in Spark's syntax. Raises KeyError for an unknown column."""
        from spark.schema import spark_ddl

        return spark_ddl(self.selected_columns())
