"""Settings of every test run: a home folder of its own, root logger and garbage collector as they were after each test,
and no deadlines for property tests outside of CI.

No test may depend on the home folder of whoever runs it, or write there: ``make serve`` keeps its store in it. So the
whole run, with every process it starts, has an empty one. Build tools (Maven, Go, npm, pip) need the real one for
their settings; `compat_tests.jars.maven.tool_environment` gives it back to them.
"""

import gc
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

TOOLS_HOME = "ROCKETMQ_TOOLS_HOME"
"""Environment variable with the home folder that build tools use; set once, by the first process of a run."""

_own_home = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Move the run, and every process it starts, to an empty home folder."""
    if TOOLS_HOME in os.environ:  # a worker, or a run started by a test
        return
    home = tempfile.mkdtemp(prefix="rocketmq-home-")
    config.stash[_own_home] = home
    os.environ[TOOLS_HOME] = os.path.expanduser("~")
    os.environ["HOME"] = home
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR"):
        os.environ.pop(name, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's home folder."""
    home = config.stash.get(_own_home, None)
    if home is not None:
        os.environ["HOME"] = os.environ.pop(TOOLS_HOME)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    """Undo what a command does to the root logger that a test calls: the next one would see records of other levels."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)


@pytest.fixture(autouse=True)
def _garbage_collector_as_it_was() -> Iterator[None]:
    """Undo what a command does to the garbage collector: without it, the garbage of later tests took gigabytes."""
    is_on, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if is_on else gc.disable)()
    if gc.get_freeze_count():
        gc.unfreeze()


@pytest.fixture
def lenient_umask() -> Iterator[None]:
    """Let new files and directories have every permission that they ask for."""
    before = os.umask(0)
    yield
    os.umask(before)


if importlib.util.find_spec("hypothesis") is not None and "CI" not in os.environ:
    from hypothesis import settings

    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")
