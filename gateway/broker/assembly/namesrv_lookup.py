"""The list of namesrvs a broker registers with: as configured, or looked up again and again while the broker runs.

An address server lists them, or DNS has several addresses for one name. Either list may change without a restart.

Source: BrokerController.updateNamesrvAddr and BrokerOuterAPI.fetchNameServerAddr, 5.4.0. Deviations: the first request
to an address server comes at the start, not 10 s later, and DNS is asked for each host of a list, not only for one.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from codec.java_numbers import parse_integer_or
from gateway.config.process import BrokerConfig
from gateway.namesrv.registration import MAX_PORT
from toolkit.address_server import FETCH_TIMEOUT_S, AddressServerError, fetch_namesrv_list

log = logging.getLogger(__name__)

Address = tuple[str, int]
FetchList = Callable[[str], Awaitable[str]]
ResolveHost = Callable[[str], Awaitable[list[str]]]

MAX_NAMESRVS: Final = 64
"""Maximum length of a list that is looked up: the broker keeps a connection to each namesrv."""


def split_addresses(text: str) -> list[Address]:
    """Parse ``host:port;host:port`` (IPv6 hosts in brackets). Raise ValueError that names the invalid part."""
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        host, colon, port = part.rpartition(":")
        number = parse_integer_or(port, -1)
        if not colon or not host or not 0 <= number <= MAX_PORT:
            raise ValueError(f"namesrvAddr: {part} is not host:port")
        pairs.append((host.strip("[]"), number))
    return pairs


async def fetch_in_thread(url: str) -> str:
    """Ask an address server. Raises AddressServerError."""
    # The thread may outlive the time limit while it waits for DNS, and must not delay the end of the process.
    with trio.move_on_after(2 * FETCH_TIMEOUT_S):
        return await trio.to_thread.run_sync(partial(fetch_namesrv_list, url), abandon_on_cancel=True)
    raise AddressServerError(f"address server {url}: no answer in {2 * FETCH_TIMEOUT_S:g} s")


async def resolve_host(host: str) -> list[str]:
    """Return the addresses that DNS has for a host, without repetitions. Raises OSError."""
    entries = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class NamesrvLookup:
    """Looks the namesrvs of one broker up. A failure keeps the last list, and is logged once until a success."""

    def __init__(
        self,
        config: BrokerConfig,
        fetch: FetchList = fetch_in_thread,
        resolve: ResolveHost = resolve_host,
    ) -> None:
        self._fetch = fetch
        self._resolve = resolve
        self._url = config.address_server
        self._configured = split_addresses(config.namesrv_addr)
        settings = config.namesrv_list
        self._uses_dns = settings.uses_dns and bool(self._configured)
        self._is_failing = False
        self.period_s = (settings.fetch_interval_ms if self._url else settings.dns_period_ms) / 1000
        self.initial: list[Address] = [] if self._uses_dns else self._configured

    @property
    def may_change(self) -> bool:
        """True if the list is looked up while the broker runs; otherwise it stays as it is configured."""
        return bool(self._url) or self._uses_dns

    async def look_up(self) -> list[Address] | None:
        """Return the present list, without repetitions; None if it cannot be had, so that the last one stays."""
        try:
            addresses = await (self._ask_address_server() if self._url else self._ask_dns())
            # Two hosts may have the same address. The caller keeps one connection for each address of the list.
            namesrvs = list(dict.fromkeys(addresses))
            if len(namesrvs) > MAX_NAMESRVS:
                raise ValueError(f"the list has {len(namesrvs)} namesrvs, more than {MAX_NAMESRVS}")
        except (AddressServerError, OSError, ValueError) as problem:
            if not self._is_failing:
                log.warning("namesrvs not looked up, the last list stays", extra={"reason": str(problem)})
            self._is_failing = True
            return None
        if self._is_failing:
            log.info("looking namesrvs up works again", extra={"namesrvs": len(namesrvs)})
        self._is_failing = False
        return namesrvs

    async def _ask_address_server(self) -> list[Address]:
        try:
            namesrvs = split_addresses(await self._fetch(self._url))
        except ValueError as problem:
            raise AddressServerError(f"address server {self._url}: {problem}") from problem
        if not namesrvs:
            raise AddressServerError(f"address server {self._url}: the list is empty")
        return namesrvs

    async def _ask_dns(self) -> list[Address]:
        return [(address, port) for host, port in self._configured for address in await self._resolve(host)]
