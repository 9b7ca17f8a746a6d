"""Runs the command line for `python -m gateway.broker.replication.tests.planting`."""

import sys

from gateway.broker.replication.tests.planting.defects import REPLICATION_DEFECTS
from storage.tests.planting.planter import plant_from_command_line

sys.exit(plant_from_command_line(REPLICATION_DEFECTS))
