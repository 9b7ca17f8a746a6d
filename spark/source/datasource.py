"""The data source `rocketmq` as Spark sees it: batch and stream, reading and writing."""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark.errors import OptionError
from spark.source.options import SOURCE, read_spec, source_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class RocketmqSource(DataSource):
    """`format("rocketmq")` of `spark.read`, `readStream`, `df.write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SOURCE

    def schema(self) -> str:
        """Return the columns that the options ask for. Raises OptionError."""
        return read_spec(source_options(self.options)).spark_ddl()

    def reader(self, schema: StructType) -> "DataSourceReader":
        """Return a batch reader. Raises OptionError."""
        from spark.source.batch_reader import FilteringReader, RocketmqReader

        values = self._reader_options(schema)
        return FilteringReader(values) if values["pushFilters"] else RocketmqReader(values)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
        """Return a stream reader. Raises OptionError."""
        from spark.source.stream_reader import RocketmqStreamReader

        return RocketmqStreamReader(self._reader_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        """Return a batch writer. Raises OptionError, ColumnError, EndpointError."""
        from spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":
        """Return a stream writer. Raises OptionError, ColumnError, EndpointError."""
        from spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _reader_options(self, schema: StructType) -> dict[str, Any]:
        values = source_options(self.options)
        columns = [column.name for column in read_spec(values).selected_columns()]
        if schema.fieldNames() != columns:
            raise OptionError(
                f"{SOURCE}: the columns are {', '.join(columns)}; select with option columns, not with a schema"
            )
        return values
