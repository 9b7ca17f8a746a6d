"""`python -m spark.bench`."""

from spark.bench.cli import main

if __name__ == "__main__":
    main()
