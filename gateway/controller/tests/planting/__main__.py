"""Runs the command line for `python -m gateway.controller.tests.planting`."""

import sys

from gateway.controller.tests.planting.defects import CONTROLLER_DEFECTS
from storage.tests.planting.planter import plant_from_command_line

sys.exit(plant_from_command_line(CONTROLLER_DEFECTS))
