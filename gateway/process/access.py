"""The access control of one process: its brokers' accounts, and the namesrv's, which are those of the first broker.

The modules of `gateway.auth` that it needs are imported when access control is on: a start without it is faster.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from codec.command import Command
from gateway.auth.audit import AuditLog, IsMember
from gateway.auth.request_needs import NeedContext
from gateway.config.process import BrokerConfig, ServeConfig
from gateway.runtime.config_file import ConfigFile
from gateway.runtime.run_blocking import RunBlocking
from remoting.handler_table import Guard
from storage.files import DiskFiles, MemoryFiles
from toolkit.private_files import PRIVATE_FILE

if TYPE_CHECKING:
    from gateway.auth.access_control import Accounts

SAVE_INTERVAL_S: Final = 1.0
"""Time after which accounts that could not be written are tried again, and changed files are read."""


class ProcessAccess:
    """Opens accounts, each directory once, and guards servers with them.

    Raises AuthConfigError for settings that cannot be used. Without access control nothing is opened or guarded.
    """

    def __init__(self, config: ServeConfig, run_blocking: RunBlocking) -> None:
        self._config = config
        self._run_blocking = run_blocking
        self._files = MemoryFiles() if config.memory else DiskFiles(small_file_mode=PRIVATE_FILE)
        self._by_directory: dict[str, Accounts | None] = {}
        self.sign = _signer(config)
        if config.auth.authorization_enabled:
            from gateway.auth.accounts import check_config

            check_config(config.auth)  # Here as well, because policies without users would protect nothing.
        if config.auth.authentication_enabled and config.memory and config.process.processes:
            from gateway.auth.accounts import AuthConfigError

            raise AuthConfigError(
                "authenticationEnabled=true cannot be combined with --memory and --processes: each broker process "
                "would keep its users to itself, and the namesrv would not know them. Leave out --memory or "
                "--processes, or use the accounts of a file (aclEnable=true)"
            )

    @property
    def is_enabled(self) -> bool:
        """Tell whether requests are checked."""
        return self._config.auth.is_enabled

    def accounts_of_broker(self, broker: BrokerConfig) -> "Accounts | None":
        """Return the accounts of a broker; None if access control is off."""
        return self._accounts_in(self._directory_of(broker)) if self.is_enabled else None

    def accounts_of_namesrv(self) -> "Accounts | None":
        """Return the accounts of the namesrv: those of the first broker, or its own ones if it is alone.

        Of a broker in another process, and of a namesrv that is alone, they are only read.
        """
        config = self._config
        if config.namesrv is None or not self.is_enabled:
            return None
        if config.brokers:
            return self._accounts_in(
                self._directory_of(config.brokers[0]), is_owner=not config.process.processes
            )
        own = os.path.dirname(config.namesrv.kv_config_path)
        return self._accounts_in(config.auth.config_path or own, is_owner=False)

    def accounts_of_grpc_front(self) -> "Accounts | None":
        """Return the accounts that verify RPCs for brokers of other processes; they are only read.

        None if access control is off, and for a proxy that asks its brokers for their users.
        """
        config = self._config
        if not self.is_enabled:
            return None
        if config.brokers:
            return self._accounts_in(self._directory_of(config.brokers[0]), is_owner=False)
        return self._accounts_in("", is_owner=False) if config.auth.acl_enable else None

    def accounts_of_controller(self) -> "Accounts | None":
        """Return the accounts of the controller: those of the namesrv of its process, or those in authConfigPath.

        A controller that is alone reads them, or looks for them beside its state.
        """
        controller = self._config.controller
        if controller is None or not self.is_enabled:
            return None
        if self._config.namesrv is not None:
            return self.accounts_of_namesrv()
        return self._accounts_in(self._config.auth.config_path or controller.store_path, is_owner=False)

    def _directory_of(self, broker: BrokerConfig) -> str:
        from gateway.broker.messages.store_settings import build_store_config

        settings = build_store_config(broker, memory=self._config.memory)
        return self._config.auth.config_path or settings.config_path

    def _accounts_in(self, directory: str, *, is_owner: bool = True) -> "Accounts | None":
        from gateway.auth.accounts import follow_accounts, open_accounts

        def open_table(name: str) -> ConfigFile:
            return ConfigFile(self._files, os.path.join(directory, name), self._run_blocking)

        if directory not in self._by_directory:
            open_or_follow = open_accounts if is_owner else follow_accounts
            self._by_directory[directory] = open_or_follow(self._config.auth, open_table)
        return self._by_directory[directory]

    def guard(
        self,
        server: str,
        accounts: "Accounts | None",
        context: NeedContext,
        is_member: IsMember | None = None,
    ) -> Guard:
        """Return the access control, if there are accounts, and the audit log of a server.

        ``is_member`` tells for a broker whether a connection is a consumer of a group. Raises ValueError for invalid
        settings.
        """
        if accounts is None:
            return AuditLog(server, is_member=is_member).guard()
        from gateway.auth.accounts import build_access_control

        control = build_access_control(self._config.auth, accounts, context)
        return AuditLog(server, control.find_signer, is_member).guard(control.protect)

    async def keep_current(self) -> None:
        """Write accounts that could not be written before, and read files that others have changed."""
        from gateway.auth.accounts import FollowedAccounts, StoredAccounts
        from gateway.auth.plain_acl import PlainAccounts

        for accounts in self._by_directory.values():
            if isinstance(accounts, StoredAccounts):
                await accounts.save()
            elif isinstance(accounts, PlainAccounts | FollowedAccounts):
                accounts.reload_if_changed()

    def persist(self) -> None:
        """Write what has changed, at the end."""
        if not self.is_enabled:
            return
        from gateway.auth.accounts import StoredAccounts

        for accounts in self._by_directory.values():
            if isinstance(accounts, StoredAccounts):
                accounts.persist()


def _signer(config: ServeConfig) -> Callable[[Command], None] | None:
    """Return what signs the brokers' own requests; None if they are not signed."""
    if not config.auth.inner_credentials:
        return None
    from gateway.auth.accounts import inner_credentials
    from remoting.acl import make_signer

    credentials = inner_credentials(config.auth)
    return None if credentials is None else make_signer(credentials)
