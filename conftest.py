"""Property tests may take their time on a busy machine; where CI=true hypothesis has a profile of its own."""

import importlib.util
import os

if importlib.util.find_spec("hypothesis") is not None and "CI" not in os.environ:
    from hypothesis import settings

    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")
