"""What a task has to read and how: picklable descriptions, made by the driver.

Not responsible for reading.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark.endpoint import Address, ClusterEndpoint

if TYPE_CHECKING:
    import pyarrow as pa

    from spark.schema import Column

RANGES_SCHEMA: Final = "ranges"
"""The schema of rows that say where messages are; see `spark.pull.unread`."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A stretch of one queue, [start, end). `broker` is the name the address was found by."""

    topic: str
    broker: str
    address: Address
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How ranges are read, the same for all tasks of a query.

    `schema` is rocketmq or kafka, or `RANGES`, which messages are not read with. `columns` is a choice among its
    columns in the order wanted (None: all). A column that `include_body` or `include_properties` leaves out is there
    and null. `expression` filters at the broker. A missing message raises DataLossError if `fail_on_data_loss`, else it
    is passed over and logged. At most `pull_batch_size` messages are asked for at a time, of which brokers send as
    many as they are set to; up to `pipeline_depth` pulls are under way; `arrow_batch_bytes` of stored messages make one
    record batch. `max_messages_per_second` (0: no limit) is for each task. `verify_body_crc` checks bodies as stock
    clients do.
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
        """Whether the broker may leave out messages."""
        return not (self.expression_type == "TAG" and self.expression.strip() in ("", "*"))

    @property
    def wants_body(self) -> bool:
        """Whether any column has a body in it."""
        return self.include_body and any(
            column.name in ("body", "value") for column in self.selected_columns()
        )

    def selected_columns(self) -> "tuple[Column, ...]":
        """The columns of every batch. Raises KeyError for one that the schema does not have."""
        from spark.schema import COLUMNS, KAFKA_COLUMNS, RANGE_COLUMNS

        table = {"kafka": KAFKA_COLUMNS, RANGES_SCHEMA: RANGE_COLUMNS}.get(self.schema, COLUMNS)
        if self.columns is None:
            return table
        by_name = {column.name: column for column in table}
        return tuple(by_name[name] for name in self.columns)

    def arrow_schema(self) -> "pa.Schema":
        """What every batch looks like. Raises KeyError for an unknown column."""
        from spark.schema import arrow_schema

        return arrow_schema(self.selected_columns())

    def spark_ddl(self) -> str:
        """The same in Spark's words. Raises KeyError for an unknown column."""
        from spark.schema import spark_ddl

        return spark_ddl(self.selected_columns())
