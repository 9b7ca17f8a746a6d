"""Runs the command line for `python -m gateway.tests.native_sends.planting`."""

import sys

from gateway.tests.native_sends.planting.defects import NATIVE_DEFECTS
from storage.tests.planting.planter import plant_from_command_line

sys.exit(plant_from_command_line(NATIVE_DEFECTS))
