import socket

import pytest
import trio

from codec.command import encode_response
from remoting.client import open_client, open_client_over
from remoting.declare import REQUESTS, Header, Request
from remoting.errors import RemotingClosed, RequestError
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.server import RemotingServer, open_listeners
from remoting.tests.virtual import settle, transports, virtual


class WordReply(Header):
    word: str


class Unknown(Request[None], code=9922):
    pass


class Word(Request[WordReply], code=9921):
    word: str


# Declared for these tests only.
del REQUESTS[Word.code]
del REQUESTS[Unknown.code]


def upper(connection, command):
    return encode_response(command.opaque, 0, {"word": command.ext["word"].upper()})


@virtual
async def test_both_ends_ask_each_other():
    here, there = transports()
    async with trio.open_nursery() as nursery:
        server = FrameConnection(there, {Word.code: upper}, nursery, ConnectionLimits())
        nursery.start_soon(server.run)
        backwards = {
            Word.code: lambda _, command: encode_response(
                command.opaque, 0, {"word": command.ext["word"][::-1]}
            )
        }
        async with open_client_over(here, backwards) as client:
            assert (await client.ask(Word(word="abc"))).word == "ABC"
            assert (await server.ask(Word(word="abc"))).word == "cba"
        await settle()
        assert server.closed


@virtual
async def test_questions_under_way_end_with_the_block():
    here, there = transports()
    async with trio.open_nursery() as nursery:
        server = FrameConnection(
            there, {Word.code: lambda connection, command: None}, nursery, ConnectionLimits()
        )
        nursery.start_soon(server.run)
        ended = []

        async def ask(client):
            with pytest.raises(RemotingClosed):
                await client.ask(Word(word="?"), timeout_s=60)
            ended.append(trio.current_time())

        start = trio.current_time()
        async with open_client_over(here) as client:
            nursery.start_soon(ask, client)
            await settle()
        await settle()
        assert ended == [start]


def test_over_tcp():
    async def main():
        server = RemotingServer({Word.code: upper})
        listeners = open_listeners("127.0.0.1", 0)
        port = listeners[0].getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, listeners)
            async with open_client("127.0.0.1", port) as client:
                assert (await client.ask(Word(word="tcp"))).word == "TCP"
                assert client.remote == ("127.0.0.1", port)
                with pytest.raises(RequestError, match="not supported"):
                    await client.ask(Unknown())
            await server.drain()
        with pytest.raises(OSError):  # noqa: PT011 - the kernel's own words
            async with open_client("127.0.0.1", port):
                pass

    trio.run(main)


def test_a_closed_port_is_an_os_error():
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(OSError):  # noqa: PT011 - the kernel's own words
            async with open_client("127.0.0.1", port):
                pass

    trio.run(main)
