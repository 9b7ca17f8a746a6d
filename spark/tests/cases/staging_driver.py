"""Do what Spark's driver and tasks do for staged batches, without Spark: `staging_driver.py <JSON>`.

Keys: dir (where the number of the last committed batch is kept, and a file `stop` ends it), namesrv, topic, rows (in
a batch). A killed driver begins with the batch behind the last one it noted, as a restart from a checkpoint does; the
rows are the same, but which task gets which is not.
"""

import json
import random
import sys
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from spark.sink.writers import WritePlan, plan_write, publish_all, send_rows

TASKS = 3


def main() -> None:
    given = json.loads(sys.argv[1])
    options = {
        "nameServer": given["namesrv"],
        "topic": given["topic"],
        "delivery": "staged",
        "retryTimes": "10",
    }
    plan = plan_write({**options, "sendBatchBytes": "4000"}, StructType([StructField("body", StringType())]))
    committed = Path(given["dir"]) / "committed"
    begin = int(committed.read_text()) + 1 if committed.exists() else 0
    for batch in count(begin):
        if (Path(given["dir"]) / "stop").exists():
            return
        run_batch(plan, batch, given["rows"])
        # as Spark's commit log: whole or not there
        new = committed.with_suffix(".new")
        new.write_text(str(batch))
        new.replace(committed)


def run_batch(plan: WritePlan, batch: int, rows: int) -> None:
    numbers = list(range(batch * rows, (batch + 1) * rows))
    parts = random.choices(range(TASKS), k=rows)
    messages = []
    for partition in range(TASKS):
        mine = [str(number) for number, part in zip(numbers, parts, strict=True) if part == partition]
        rows_of_task = pa.RecordBatch.from_arrays([pa.array(mine, pa.string())], ["body"])
        if random.random() < 0.2:  # An attempt that fails, or is speculative, leaves its stage behind.
            send_rows(plan, [rows_of_task], "query", batch, partition)
        messages.append(send_rows(plan, [rows_of_task], "query", batch, partition))
    assert plan.staging_broker is not None
    publish_all(plan, plan.staging_broker, messages, batch, stream=True)


if __name__ == "__main__":
    main()
