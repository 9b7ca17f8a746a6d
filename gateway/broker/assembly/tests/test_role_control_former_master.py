"""A former master whose last messages were cut, and which takes over once more."""

import pytest
import trio

from gateway.broker.assembly.tests.test_role_control_hand_over import Pair, links_of, pair
from gateway.broker.replication.table_sync import TableSync
from gateway.broker.replication.tests.simulation.clients import create_group
from gateway.config.replication import ASYNC_MASTER, SLAVE
from gateway.tests.cluster import message, simulated
from gateway.tests.popping import Client, bodies
from remoting.errors import RemotingClosed
from remoting.requests.roles import ChangeBrokerRole


@pytest.mark.parametrize("copies_tables", [True, False])
@simulated
async def test_messages_whose_pop_was_cut_come_again_when_a_former_master_takes_over(
    cluster, monkeypatch, copies_tables
):
    """Nobody else knows that the group has popped, and all that was left of it here was its offset."""
    before = await pair(cluster, ASYNC_MASTER)
    await before.client.ask(message(body=b"acked too late"))
    await before.client.ask(message(body=b"not acked"))
    await before.client.ask(create_group("GID"))
    await trio.sleep(20)  # until the slave has copied the tables, and saved them
    await before.slave.crash()
    client = Client(cluster, before.master)
    popped = await client.pop(invisible_time=1000)
    await client.ack(popped[0])
    await trio.sleep(12)  # until the other one was revived, and the tables are saved
    await before.master.crash()
    files = [node.broker.store.files for node in (before.master, before.slave)]
    links = links_of(cluster)
    master = await cluster.add_broker(
        host=before.slave.address[0], files=files[1], links=links, broker_role=ASYNC_MASTER
    )
    await cluster.dial(master.address).ask(message(body=b"of the new master", queue_id=1))

    async def fail(sync, connection):
        raise RemotingClosed("the tables cannot be copied")

    if not copies_tables:
        monkeypatch.setattr(TableSync, "sync_all", fail)
    former = await cluster.add_broker(
        host=before.master.address[0], files=files[0], links=links, broker_role=SLAVE, broker_id=1
    )
    end = master.broker.store.max_physical_offset
    while not former.broker.replication.follows_master or former.broker.store.readable_until < end:
        await trio.sleep(1)
    assert former.broker.replication.last_cut is not None
    assert former.broker.store.readable_until == end
    if copies_tables:
        await Pair(cluster, master, former).hand_over()
    else:
        await master.crash()
        promote = ChangeBrokerRole(broker_role=ASYNC_MASTER, broker_id=0, force=True)
        await cluster.dial(former.address).ask(promote, 30)
    again = await Client(cluster, former).pop()
    assert bodies(again) == [b"acked too late", b"not acked", b"of the new master"]
