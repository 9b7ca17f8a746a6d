"""A data source that can only write."""

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from spark.sink.datasource import batch_writer, stream_writer


class SinkOnly(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sinkonly"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return stream_writer(self.options, schema, overwrite)
