"""Modes of topics are switched through the console, by the command."""

import trio
from click.testing import CliRunner

from gateway.shadow.commands import shadow
from gateway.shadow.figures import Figures
from gateway.shadow.mirror.mirrors import Mirrors
from gateway.shadow.mirror.routes import MirrorRoutes
from gateway.shadow.mirror.rules import Rules
from gateway.shadow.mirror.settings import Mirroring, MirrorRule
from gateway.shadow.report.console import Console
from gateway.shadow.report.settings import ConsoleSettings


def test_modes_are_shown_set_and_reset():
    mirrors = Mirrors(Rules([MirrorRule()]), Mirroring(), None)

    async def main():
        console = Console(ConsoleSettings(port=0), Figures())
        MirrorRoutes(mirrors).register(console)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(console.run)
            await trio.to_thread.run_sync(commands, ["--console", f"{host}:{port}"])
            nursery.cancel_scope.cancel()

    def commands(at):
        def run(*given):
            return CliRunner().invoke(shadow, ["mode", *given, *at])

        assert run().output == "every topic has the mode of its rule\n"
        assert run("Orders", "strict-dual").output == "Orders: strict-dual\n"
        assert mirrors.rules.mode(0, "Orders") == "strict-dual"
        assert run("Clicks", "off").output == "Clicks: off\nOrders: strict-dual\n"
        wrong = run("Orders", "sideways")
        assert wrong.exit_code == 1
        assert "is none of off, async" in wrong.output
        assert run("Orders", "--reset").output == "Clicks: off\n"
        assert mirrors.rules.mode(0, "Orders") == "async"
        for given in (["Orders"], ["--reset"], ["Orders", "off", "--reset"]):
            assert run(*given).exit_code == 2

    trio.run(main)
