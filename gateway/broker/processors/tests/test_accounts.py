"""Changes of users that overlap."""

from types import SimpleNamespace

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.auth.account_table import ACLS_FILE, USERS_FILE, PolicyTable, User, UserTable
from gateway.auth.accounts import StoredAccounts
from gateway.broker.processors.accounts import delete_user
from gateway.runtime.config_file import ConfigFile
from remoting.errors import RequestError
from remoting.requests.auth import AuthDeleteUser
from storage.errors import StoreFull
from storage.files import MemoryFiles


class RefusingFiles(MemoryFiles):
    """Files of which the one named ``refused`` cannot be written."""

    refused = ""

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        if path == self.refused:
            raise StoreFull(f"no room for {path}", "no room on disk")
        super().write_small(path, data, backup)


def test_a_repeated_deletion_is_not_acknowledged_before_the_first_is_written():
    files, refusals = RefusingFiles(), []

    async def run_later(work, *arguments):
        await trio.sleep(1)
        work(*arguments)

    async def main():
        accounts = StoredAccounts(
            UserTable(ConfigFile(files, USERS_FILE, run_later)),
            PolicyTable(ConfigFile(files, ACLS_FILE, run_later)),
        )
        accounts.users.put(User("alice", "secret"))
        accounts.persist()
        files.refused = USERS_FILE
        broker, call = SimpleNamespace(accounts=accounts), SimpleNamespace(command=SimpleNamespace(ext={}))

        async def delete():
            try:
                await delete_user(broker, AuthDeleteUser(username="alice"), call)
            except RequestError as refused:
                refusals.append(refused.remark)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            while "alice" in accounts.users.users:
                await wait_all_tasks_blocked()
                await trio.sleep(0.1)
            nursery.start_soon(delete)
        assert "alice" in accounts.users.users

    trio.run(main, clock=MockClock(autojump_threshold=0.01))
    assert len(refusals) == 2
    assert all("the change was not stored and is undone" in str(remark) for remark in refusals)
