"""Runs the command line for `python -m storage.tests.planting`."""

import sys

from storage.tests.planting.planter import plant_from_command_line
from storage.tests.planting.store_catalogue import STORE_DEFECTS

sys.exit(plant_from_command_line(STORE_DEFECTS))
