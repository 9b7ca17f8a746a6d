"""Script for spark-submit: `spark-submit …/spark/pipelines/submit.py ingest -c ingest.toml`.

Master and resources are spark-submit's; the pipeline's arguments follow the script.
"""

import sys
from pathlib import Path

# A script's own directory comes first on the path, and its `profile` would hide Python's module of that name.
sys.path[:] = [
    folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).resolve().parent
]


def main() -> None:
    """Run the pipeline that the arguments name."""
    from spark.pipelines.commands import spark

    spark(obj={"submitted": True}, prog_name="submit.py")


if __name__ == "__main__":
    main()
