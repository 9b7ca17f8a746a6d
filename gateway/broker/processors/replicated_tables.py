"""Answers a slave of this project that asks for the tables which official slaves do not copy."""

from gateway.broker.broker import Broker
from remoting.bodies.replication import DeletedTopic, ReplicatedTables
from remoting.handler_table import HandlerTable
from remoting.requests.replication import GetReplicatedTables, GetReplicatedTablesReply

handlers: HandlerTable[Broker] = HandlerTable()


@GetReplicatedTables.on(handlers)
async def get_replicated_tables(broker: Broker, request: GetReplicatedTables) -> GetReplicatedTablesReply:
    """Return SQL filters, ordered pops and the deletions of topics."""
    filters = await broker.consumer_filters.encode()
    pops = await broker.pop.state.ordered_pops.encode()
    deletions = {
        topic: DeletedTopic(log_end=log_end, time_ms=time_ms)
        for topic, (log_end, time_ms) in broker.store.deletion_notes.items()
    }
    tables = ReplicatedTables(
        consumer_filters=filters.decode(), ordered_pops=pops.decode(), deleted_topics=deletions
    )
    return GetReplicatedTablesReply(data=tables)
