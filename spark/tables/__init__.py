"""Tables to which each micro-batch is appended exactly once: Delta, or Parquet with one directory per batch.

table = open_table("/data/lake", "messages", session=session)     # Delta if it is installed
table.append(app_id, batch_id, by_day(frame))                     # repeating it with the same ids does nothing
table.read(session); table.dataset()                              # Spark; pyarrow and DuckDB
table.compact()
"""

from spark.tables.table import AppendResult, CompactResult, Table
from spark.tables.table_formats import FORMATS, open_table

__all__ = ["FORMATS", "AppendResult", "CompactResult", "Table", "open_table"]
