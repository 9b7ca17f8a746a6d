"""Runs the command line for `python -m storage.tests.planting`."""

import sys

from storage.tests.planting.planter import main

sys.exit(main())
