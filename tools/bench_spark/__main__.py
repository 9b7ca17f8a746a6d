"""`python -m tools.bench_spark`."""

from tools.bench_spark.cli import main

if __name__ == "__main__":
    main()
