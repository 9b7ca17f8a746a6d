"""Runs the command line for `python -m compat_tests.tests.planting`."""

import sys

from compat_tests.tests.planting.deviations import PROTOCOL_DEVIATIONS
from storage.tests.planting.planter import plant_from_command_line

sys.exit(plant_from_command_line(PROTOCOL_DEVIATIONS))
