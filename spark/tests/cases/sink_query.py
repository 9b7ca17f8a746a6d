"""A streaming query that writes numbered rows to a topic until it is killed: `sink_query.py <JSON>`.

Keys: dir (checkpoint and Spark's files), namesrv, topic, options (of the sink), rows (in a batch).
"""

import json
import sys
from pathlib import Path

from spark import register
from spark.tests.cases.sessions import new_session


def main() -> None:
    given = json.loads(sys.argv[1])
    directory = Path(given["dir"])
    session = new_session(directory)
    register(session)
    rows = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", given["rows"])
        .option("numPartitions", 2)
        .load()
        .selectExpr("cast(value as string) as body", "cast(value % 10 as string) as shardingKey")
    )
    query = (
        rows.writeStream.format("rocketmq")
        .options(nameServer=given["namesrv"], topic=given["topic"], **given.get("options", {}))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
