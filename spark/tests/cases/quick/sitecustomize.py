"""Spark puts its own Python as a zip before the installed one, and every process compiles it anew (1.2 s of CPU).

Here it is the installed one, whose compiled files are kept: on a busy machine the other took longer than the 10 s Spark
gives a process to report.
"""

import os
import sys

if any(path.endswith("site-packages") and os.path.isdir(f"{path}/pyspark") for path in sys.path):
    sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
