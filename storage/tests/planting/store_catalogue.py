"""The planted defects of the store, with the laws that they break."""

from typing import Final

from storage.tests.planting.catalogue import Catalogue
from storage.tests.planting.confirmed_defects import CONFIRMED_DEFECTS
from storage.tests.planting.defect import Law
from storage.tests.planting.log_defects import LOG_DEFECTS
from storage.tests.planting.other_defects import OTHER_DEFECTS
from storage.tests.planting.recovery_defects import RECOVERY_DEFECTS
from storage.tests.planting.timer_defects import TIMER_DEFECTS

STORIES: Final = "storage/tests/test_store_model.py"
"""The random stories about a store. No defect relies on them."""
STORE_DEFECTS: Final = Catalogue(
    defects=(*LOG_DEFECTS, *RECOVERY_DEFECTS, *CONFIRMED_DEFECTS, *TIMER_DEFECTS, *OTHER_DEFECTS),
    rule="law",
    rules=tuple(Law),
    page="docs/explanation/store-laws.md",
    stories=STORIES,
)
