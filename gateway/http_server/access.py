"""Decides who may send a request to a console: host, origin, credentials, role.

Theory of operation
-------------------
A console listens where browsers are, and a browser sends requests on behalf of any page that is open in it. So four
things are checked, in this order, before a body is received:

1. *Host.* The Host header is an address, localhost, or a configured name. A page can make its own name resolve to this
   machine (DNS rebinding), but the browser then sends that name.
2. *Origin.* A request that says it comes from another site (Origin, Sec-Fetch-Site) is refused, except for following a
   link. Browsers send stored passwords with requests of foreign pages, too.
3. *Credentials.* With a token or users, one of them must be given: ``Bearer TOKEN``, or ``Basic`` with name and
   password. Passwords are verified by scrypt in a thread, one at a time; the digest of the last good one of each user,
   under a key that only this process knows, saves doing so again. Failures are bounded by user and address.
4. *Role.* A request that changes something (not GET or HEAD) needs the role operator, and a header that no form and
   no foreign script can set (`ACTION_HEADER`), unless a bearer token proves the same.

Comparisons of secrets take the same time whatever differs.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import trio

from gateway.http_server.errors import ConsoleError
from gateway.http_server.http_connection import HttpRequest
from gateway.http_server.password_hash import MAX_PASSWORD_BYTES, PasswordHash
from gateway.http_server.settings import OPERATOR, UNKNOWN_HASH, ConsoleSettings
from gateway.runtime.run_blocking import RunBlocking

log = logging.getLogger(__name__)

READING_METHODS: Final = ("GET", "HEAD")
ACTION_HEADER: Final = b"x-requested-with"
"""Only scripts of the same site can add it, and other sites' scripts ask first, which no route allows."""
MAX_FAILURES: Final = 10
"""Failed attempts of a user from an address within FAILURE_PERIOD_S; further ones are refused unseen."""
FAILURE_PERIOD_S: Final = 60.0
MAX_FAILURE_RECORDS: Final = 1024
MAX_WAITING_VERIFICATIONS: Final = 8
"""Passwords that wait to be verified; each takes a fifth of a second of one processor."""
_TOKEN_CALLER: Final = "token"
_ANYBODY: Final = "anybody"


class Caller(NamedTuple):
    """The sender of a request; ``via_token`` if a bearer token proved it."""

    name: str
    role: str
    via_token: bool = False


class FailedAttempts:
    """Counts failed attempts by user and address, in a table of at most MAX_FAILURE_RECORDS."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._records: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def wait_s(self, name: str, address: str) -> float:
        """Return for how long attempts are refused; 0 if they are not."""
        begun_s, count = self._records.get((name, address), (0.0, 0))
        left_s = begun_s + FAILURE_PERIOD_S - self._now_s()
        return left_s if count >= MAX_FAILURES and left_s > 0 else 0.0

    def note_failure(self, name: str, address: str) -> None:
        """Count a failed attempt."""
        begun_s, count = self._records.pop((name, address), (0.0, 0))
        if not count or self._now_s() - begun_s >= FAILURE_PERIOD_S:
            begun_s, count = self._now_s(), 0
        self._records[name, address] = begun_s, count + 1
        if len(self._records) > MAX_FAILURE_RECORDS:
            self._records.popitem(last=False)

    def forget(self, name: str, address: str) -> None:
        """Forget failures, after a success."""
        self._records.pop((name, address), None)


class PasswordCheck:
    """Verifies names and passwords. ``run_blocking`` runs the slow part in a thread."""

    def __init__(self, users: dict[str, PasswordHash], run_blocking: RunBlocking) -> None:
        self._users = users
        self._run_blocking = run_blocking
        self._turn = trio.CapacityLimiter(1)
        self._key = os.urandom(32)
        self._good_digests: dict[str, bytes] = {}
        # A name that nobody has takes as long as one with a wrong password.
        self._nobody = PasswordHash.parse(UNKNOWN_HASH)

    async def is_right(self, name: str, password: str) -> bool:
        """Tell whether this is the password of a user. Raises ConsoleError when too many wait."""
        digest = hmac.digest(self._key, f"{len(name)}:{name}{password}".encode(), hashlib.sha256)
        if hmac.compare_digest(self._good_digests.get(name, b""), digest):
            return True
        if self._turn.statistics().tasks_waiting >= MAX_WAITING_VERIFICATIONS:
            raise ConsoleError("too many passwords are being verified; try again", 503)
        user = self._users.get(name)
        async with self._turn:
            matches = await self._run_blocking(lambda: (user or self._nobody).matches(password))
        if user is None or not matches:
            return False
        self._good_digests[name] = digest
        return True


class ConsoleAccess:
    """Authorizes the requests of one console."""

    def __init__(
        self,
        settings: ConsoleSettings,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        now_s: Callable[[], float] = trio.current_time,
        *,
        needs_action_header: bool = True,
    ) -> None:
        self._needs_action_header = needs_action_header
        self._token = settings.token.encode()
        self._roles = {user.name: user.role for user in settings.users}
        self._hosts = frozenset(host.lower() for host in settings.hosts)
        users = {user.name: PasswordHash.parse(user.password_hash) for user in settings.users}
        self._passwords = PasswordCheck(users, run_blocking)
        self._failures = FailedAttempts(now_s)

    async def authorize(self, request: HttpRequest, address: str) -> Caller:
        """Return the sender of a request. Raises ConsoleError for one that may not send it."""
        check_host(request, self._hosts)
        check_origin(request)
        caller = await self._authenticate(request, address)
        if request.method not in READING_METHODS:
            if caller.role != OPERATOR:
                raise ConsoleError(f"user {caller.name} may only look: this needs the role operator", 403)
            has_proof = caller.via_token or not self._needs_action_header
            if not has_proof and not request.headers.get(ACTION_HEADER):
                raise ConsoleError(
                    "requests that change something need the header X-Requested-With (any value), which web "
                    "pages of other sites cannot set",
                    403,
                )
        return caller

    async def _authenticate(self, request: HttpRequest, address: str) -> Caller:
        if not self._token and not self._roles:
            return Caller(_ANYBODY, OPERATOR)
        scheme, _, encoded = request.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and self._token:
            self._refuse_too_many(_TOKEN_CALLER, address)
            if hmac.compare_digest(encoded.strip(), self._token):
                self._failures.forget(_TOKEN_CALLER, address)
                return Caller(_TOKEN_CALLER, OPERATOR, via_token=True)
            self._fail(_TOKEN_CALLER, address)
        if scheme.lower() == b"basic" and self._roles:
            name, password = _decode_basic(encoded)
            self._refuse_too_many(name, address)
            if await self._passwords.is_right(name, password):
                self._failures.forget(name, address)
                return Caller(name, self._roles[name])
            self._fail(name, address)
        raise self._challenge()

    def _refuse_too_many(self, name: str, address: str) -> None:
        wait_s = self._failures.wait_s(name, address)
        if wait_s:
            headers = (("Retry-After", str(int(wait_s) + 1)),)
            raise ConsoleError(f"too many failed attempts: try again in {wait_s:.0f} s", 429, headers)

    def _fail(self, name: str, address: str) -> None:
        self._failures.note_failure(name, address)
        shown = name if name in self._roles or name == _TOKEN_CALLER else "(unknown)"
        log.warning("console credentials refused", extra={"user": shown, "remote": address})

    def _challenge(self) -> ConsoleError:
        ways = []
        if self._roles:
            ways.append(("WWW-Authenticate", 'Basic realm="rmq-gateway", charset="UTF-8"'))
        if self._token:
            ways.append(("WWW-Authenticate", 'Bearer realm="rmq-gateway"'))
        text = "the console requires " + " or ".join(
            (["a user's name and password (Basic)"] if self._roles else [])
            + (["its token (Authorization: Bearer …)"] if self._token else [])
        )
        return ConsoleError(text, 401, tuple(ways))


def check_host(request: HttpRequest, names: Collection[str]) -> None:
    """Raise ConsoleError for a Host header with a name other than localhost and ``names``."""
    host = _host_of(request.headers.get(b"host", b"localhost"))
    if host == "localhost" or host in names:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ConsoleError(
            "requests under a host name are refused: use an address or localhost, or name the host in the setting "
            "hosts of [console] (servers: httpHosts)",
            403,
        ) from None


def check_origin(request: HttpRequest) -> None:
    """Raise ConsoleError for a request that a web page of another site makes."""
    origin = request.headers.get(b"origin")
    if origin is not None:
        _, _, site = origin.lower().partition(b"://")
        if not site or site != request.headers.get(b"host", b"").lower():
            raise ConsoleError("requests from web pages of other sites are refused", 403)
    fetched_from = request.headers.get(b"sec-fetch-site", b"none")
    follows_link = request.method == "GET" and request.headers.get(b"sec-fetch-mode") == b"navigate"
    if fetched_from not in (b"none", b"same-origin") and not follows_link:
        raise ConsoleError("requests from web pages of other sites are refused", 403)


def _host_of(header: bytes) -> str:
    """Return the host of a Host header in lower case, without port and brackets."""
    host = header.decode("latin-1").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") <= 1 else host


def _decode_basic(encoded: bytes) -> tuple[str, str]:
    """Return name and password. Raises ConsoleError."""
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise ConsoleError("the Authorization header is not valid", 400) from error
    if not colon or len(password.encode()) > MAX_PASSWORD_BYTES:
        raise ConsoleError("the Authorization header is not valid", 400)
    return name, password
