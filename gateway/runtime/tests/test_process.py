import gc
import subprocess
import sys

from gateway.runtime.process import tune_garbage_collector


def test_the_collector_works_from_the_end_of_a_start_on():
    gc.disable()
    tune_garbage_collector()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_the_command_line_is_there_without_what_only_help_needs():
    found = subprocess.run(
        [sys.executable, "-c", "import sys, gateway.commands.cli; print(*sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert {"trio", "importlib.metadata", "gateway.process.server"}.isdisjoint(found.stdout.split())
    assert "gateway.commands.cli" in found.stdout.split()
