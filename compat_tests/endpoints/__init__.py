"""The servers a test or benchmark can run against, all behind one `Endpoint`.

Not responsible for what is asked of them.
"""

from compat_tests.endpoints.base import Endpoint, NotPossible
from compat_tests.endpoints.choose import KINDS, choose, judged_as
from compat_tests.endpoints.process import exit_on_sigterm
from compat_tests.jars import Unavailable

__all__ = ["KINDS", "Endpoint", "NotPossible", "Unavailable", "choose", "exit_on_sigterm", "judged_as"]
