"""Mode overrides: set through the console by the command, and kept in a file."""

import pytest
import trio
from click.testing import CliRunner

from gateway.http_server.server import Console
from gateway.http_server.settings import ConsoleSettings
from gateway.runtime.metrics import MetricRegistry
from gateway.shadow.commands.root import shadow
from gateway.shadow.cutover.mode_switch import ModeSwitch
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.rules import MirrorRules, ModeOverrides
from gateway.shadow.mirror.service import MirrorRoutes
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from storage.files import MemoryFiles
from toolkit.settings import SettingsError

BOTH = "Clicks: off (its rule: async)\nOrders: strict-dual (its rule: async)\n"


def test_mode_command_lists_sets_and_clears_overrides():
    mirrors = Mirror(MirrorRules([MirrorRule()]), MirrorSettings(), None, DivergedQueues(10))

    async def switch(topic, mode):
        mirrors.apply_mode(topic, mode)

    async def main():
        console = Console(ConsoleSettings(port=0), MetricRegistry(), "rocketmq_test_")
        MirrorRoutes(mirrors, switch).register(console)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(console.run)
            await trio.to_thread.run_sync(commands, ["--console", f"{host}:{port}"])
            nursery.cancel_scope.cancel()

    def commands(at):
        def run(*given):
            return CliRunner().invoke(shadow, ["mode", *given, *at])

        assert run().output == "No overrides: every topic uses the mode set by its mirror rule.\n"
        assert run("Orders", "strict-dual").output == "Orders: strict-dual (its rule: async)\n"
        assert mirrors.rules.effective_mode(0, "Orders") == "strict-dual"
        assert run("Clicks", "off").output == BOTH
        wrong = run("Orders", "sideways")
        assert wrong.exit_code == 1
        assert "invalid mode 'sideways' (expected off, async" in wrong.output
        assert run("Orders", "--reset").output == "Clicks: off (its rule: async)\n"
        assert mirrors.rules.effective_mode(0, "Orders") == "async"
        for given in (["Orders"], ["--reset"], ["Orders", "off", "--reset"]):
            assert run(*given).exit_code == 2

    trio.run(main)


def test_mode_overrides_survive_a_restart():
    files = MemoryFiles()
    kept = ModeOverrides(files, "/state.modes")

    async def main():
        await kept.save_mode("Orders", "strict-dual")
        await kept.save_mode("Clicks", "off")
        await kept.save_mode("Clicks", "")

    trio.run(main)
    mirrors = Mirror(MirrorRules([MirrorRule()]), MirrorSettings(), None, DivergedQueues(10))
    ModeSwitch(mirrors, None, None, ModeOverrides(files, "/state.modes")).restore_modes()
    assert mirrors.rules.mode_overrides() == {"Orders": "strict-dual"}
    assert mirrors.status()["rules"] == {"Orders": "async"}
    assert ModeOverrides(files, "").modes == {}


@pytest.mark.parametrize(
    "data", [b"no json", b'{"format": 2}', b'{"format": 1, "modes": {"t": "up"}}', b"[]"]
)
def test_unreadable_mode_file_raises_settings_error(data):
    files = MemoryFiles()
    files.write_small("/state.modes", data)
    with pytest.raises(SettingsError, match=r"state\.modes"):
        ModeOverrides(files, "/state.modes")
