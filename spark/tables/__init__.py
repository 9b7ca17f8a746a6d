"""Tables that micro-batches are appended to, each batch once: Delta, or a directory per batch.

    table = open_table("/data/lake", "messages", session=session)     # Delta where it is installed
    table.append(app_id, batch_id, by_day(frame))                     # again with the same ids: nothing happens
    table.read(session); table.dataset()                              # Spark; pyarrow and DuckDB
    table.compact()

Not responsible for where rows come from, nor for what is in them besides the columns of `layout`.
"""

from spark.tables.table import AppendResult, CompactResult, Table
from spark.tables.table_formats import FORMATS, open_table

__all__ = ["FORMATS", "AppendResult", "CompactResult", "Table", "open_table"]
