"""The users of a remote cluster, as its brokers keep them: what an RPC's signature is checked with.

The front verifies each RPC itself and signs the request that it becomes with the same user's secret, so brokers decide
by that user's policies. The official Proxy decides by the policies too, and signs with a user of its own.
Source: ClusterMetadataService.ClusterUserCacheLoader, 5.4.0.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from gateway.auth.access_control import AccessDenied
from gateway.auth.account_table import User, UserStatus
from gateway.auth.policies import NO_POLICIES, Policies
from gateway.auth.resources import find_named
from gateway.grpc_front.loading_cache import LoadingCache
from remoting.bodies.auth import UserInfo

MAX_USER_CHARS: Final = 255
"""Longest name of a user: names of users that do not exist are kept for a while, too."""


class RemoteUsers:
    """The users by name, except disabled ones. ``load_user`` asks a broker; it returns None if there is none."""

    trusts_addresses = False

    def __init__(self, nursery: trio.Nursery, load_user: Callable[[str], Awaitable[UserInfo | None]]) -> None:
        self._load_user = load_user
        self._users = LoadingCache[User]("user", nursery, self._load)

    async def _load(self, name: str) -> User | None:
        info = await self._load_user(name)
        if info is None or info.username != name or not info.password:
            return None
        if find_named(UserStatus, info.user_status) is UserStatus.DISABLE:
            return None
        return User(name, info.password)

    async def ensure(self, name: str) -> None:
        """Make sure that `user` knows a name. Raises AccessDenied for a long one, or what ``load_user`` raises."""
        if len(name) > MAX_USER_CHARS:
            raise AccessDenied(f"a username has at most {MAX_USER_CHARS} characters.")
        await self._users.ensure(name)

    def user(self, name: str) -> User | None:
        """Return the user of this name, if there is one."""
        return self._users.get(name)

    def policies(self, name: str) -> Policies:
        """Return none: the brokers decide."""
        return NO_POLICIES

    def is_trusted_address(self, address: str, user: str | None) -> bool:
        """Return False: the brokers decide."""
        return False
