import pytest
import trio
from click import ClickException

from gateway.console.errors import ConsoleError
from gateway.console.server import Console
from gateway.console.settings import ConsoleSettings
from gateway.runtime.metrics import MetricRegistry
from gateway.shadow.console.client import (
    ConsoleClient,
    ConsoleRefused,
    ConsoleUnreachable,
    make_console_client,
)


def _make_console(**settings):
    made = Console(ConsoleSettings(port=0, **settings), MetricRegistry(), "rocketmq_test_")

    def refuse(given):
        raise ConsoleError("not now", 409)

    made.get("/echo", lambda given: given)
    made.post("/echo", lambda given: given)
    made.post("/refuse", refuse)
    return made


def test_console_client_over_a_real_port(tmp_path):
    async def main():
        served = _make_console(token="sesame", max_connections=2)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(served.run)
            config = tmp_path / "shadow.toml"
            config.write_text(f'[console]\nport = {port}\ntoken = "sesame"\n[primary]\nnamesrv = []\n')
            client = make_console_client(config)

            def talk():
                assert client.get("/echo", topic="ä b") == {"topic": "ä b"}
                assert client.post("/echo", {"a": 1}) == {"a": 1}
                assert client.post("/echo") == {}
                with pytest.raises(ConsoleRefused, match="not now") as refused:
                    client.post("/refuse")
                assert refused.value.status == 409
                with pytest.raises(ConsoleRefused, match="token"):
                    ConsoleClient(host, port).get("/status")

            async with trio.open_nursery() as talking:
                for _ in range(5):
                    talking.start_soon(trio.to_thread.run_sync, talk)
            nursery.cancel_scope.cancel()
        with pytest.raises(ConsoleUnreachable, match=f":{port}"):
            await trio.to_thread.run_sync(client.get, "/status")

    trio.run(main)


def test_client_address_comes_from_the_configuration(tmp_path):
    config = tmp_path / "shadow.toml"
    config.write_text('[console]\nhost = "0.0.0.0"\nport = 1\ntoken = "t"\n')
    client = make_console_client(config)
    assert (client.host, client.port) == ("127.0.0.1", 1)
    assert isinstance(make_console_client(config, "somewhere:7"), ConsoleClient)
    for text, problem in (
        ("[console]\nenabled = false\n", "enabled = false"),
        ("[console\n", "shadow.toml"),
        ("[console]\npart = 1\n", 'did you mean "port"'),
    ):
        config.write_text(text)
        with pytest.raises(ClickException, match=problem):
            make_console_client(config)
    with pytest.raises(ClickException, match="nowhere"):
        make_console_client(tmp_path / "nowhere.toml")
