"""Answers a slave of this project that asks for the tables which official slaves do not copy."""

import trio

from codec.constants import ResponseCode
from gateway.broker.broker import Broker
from remoting.acl import ACCESS_KEY
from remoting.bodies.replication import DeletedTopic, ReplicatedAccounts, ReplicatedTables
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.replication import (
    GetReplicatedAccounts,
    GetReplicatedAccountsReply,
    GetReplicatedTables,
    GetReplicatedTablesReply,
)

handlers: HandlerTable[Broker] = HandlerTable()


@GetReplicatedTables.on(handlers)
async def get_replicated_tables(broker: Broker, request: GetReplicatedTables) -> GetReplicatedTablesReply:
    """Return SQL filters, pops, the deletions of topics and the ends of queues without messages."""
    popped = list(broker.pop.state.reviver.popped_keys)
    if request.popped_only:
        return GetReplicatedTablesReply(data=ReplicatedTables(popped=popped))
    filters = await broker.consumer_filters.encode()
    pops = await broker.pop.state.ordered_pops.encode()
    deletions = {
        topic: DeletedTopic(log_end=log_end, time_ms=time_ms)
        for topic, (log_end, time_ms) in broker.store.deletion_notes.items()
    }
    empty_queues: dict[str, dict[int, int]] = {}
    for queue in broker.store.ends_of_empty_queues():
        if queue is None:
            await trio.lowlevel.checkpoint()
            continue
        topic, queue_id, end = queue
        empty_queues.setdefault(topic, {})[queue_id] = end
    tables = ReplicatedTables(
        consumer_filters=filters.decode(),
        ordered_pops=pops.decode(),
        deleted_topics=deletions,
        empty_queues=empty_queues,
        broker_role=broker.config.replication.broker_role,
        popped=popped,
    )
    return GetReplicatedTablesReply(data=tables)


@GetReplicatedAccounts.on(handlers)
def get_replicated_accounts(
    broker: Broker, request: GetReplicatedAccounts, call: Call
) -> GetReplicatedAccountsReply:
    """Return users and policies of ACL 2.0; nothing without access control, and of files that others change.

    Raises RequestError for a sender that is no super user: the answer has the passwords of super users, too.
    """
    # Here, because a start without access control is faster without it.
    from gateway.auth.accounts import StoredAccounts

    accounts = broker.accounts
    if not isinstance(accounts, StoredAccounts):
        return GetReplicatedAccountsReply(data=ReplicatedAccounts())
    sender = accounts.users.get(call.command.ext.get(ACCESS_KEY, ""))
    if sender is not None and not sender.is_super:
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"{sender.name} is not a super user, and only these copy accounts"
        )
    users, acls = accounts.users.to_json().decode(), accounts.policy_table.to_json().decode()
    return GetReplicatedAccountsReply(data=ReplicatedAccounts(users=users, acls=acls))
