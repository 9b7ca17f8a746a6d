import gc
import subprocess
import sys

import pytest

from gateway.runtime.process import tune_garbage_collector


@pytest.fixture
def collector():
    """The collector is afterwards as it was."""
    before, was_on = gc.get_threshold(), gc.isenabled()
    yield gc
    gc.unfreeze()
    gc.set_threshold(*before)
    (gc.enable if was_on else gc.disable)()


def test_the_collector_works_from_the_end_of_a_start_on(collector):
    collector.disable()
    tune_garbage_collector()
    assert collector.isenabled()
    assert collector.get_freeze_count() > 0


def test_the_command_line_is_there_without_what_only_help_needs():
    found = subprocess.run(
        [sys.executable, "-c", "import sys, gateway.cli; print(*sys.modules)"], capture_output=True, text=True
    )
    assert {"trio", "importlib.metadata", "gateway.server"}.isdisjoint(found.stdout.split())
    assert "gateway.cli" in found.stdout.split()
