"""A former master passes requests of producers on to the new one."""

import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.replication.relay import RELAY_S, Relay
from gateway.config.replication import ASYNC_MASTER, SLAVE
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from gateway.tests.configs import change_config
from remoting.errors import RequestError
from remoting.requests.roles import ChangeBrokerRole

TOPIC_TOO_LONG = 29


async def handed_over(cluster):
    """Return a former master that passes on, and the new master."""
    old, new = await cluster.add_broker(), await cluster.add_broker(host="10.0.1.77")
    old.service.relay = relay = Relay(new.address, cluster.client, trio.current_time() + RELAY_S)
    await old.service.rebuild(lambda config: change_config(config, broker_role=SLAVE, broker_id=1))
    cluster.nursery.start_soon(relay.run)
    await settle()
    return old, new


@simulated
async def test_sends_reach_the_new_master_and_their_answers_the_client(cluster):
    old, new = await handed_over(cluster)
    client = cluster.dial(old.address)
    for number in range(3):
        assert (await client.ask(message(body=b"%d" % number))).queue_offset == number
    assert bodies(await cluster.dial(new.address).ask(pull())) == [b"0", b"1", b"2"]
    with pytest.raises(RequestError) as refused:
        await client.ask(message(topic="x" * 200))
    assert refused.value.code == TOPIC_TOO_LONG, "a refusal of the new master comes back as well"
    assert old.broker.store.max_physical_offset == 0


@simulated
async def test_requests_that_a_client_sends_without_waiting_stay_in_their_order(cluster):
    old, new = await handed_over(cluster)
    client = cluster.dial(old.address)
    await client.ask(message(body=b"0"))
    answers = []
    for number in range(1, 30):
        client.send_command(message(body=b"%d" % number).to_command(), answers.append)
    await trio.sleep(1)
    assert len(answers) == 29
    assert None not in answers
    assert bodies(await cluster.dial(new.address).ask(pull())) == [b"%d" % number for number in range(30)]
    client.close()
    await settle()
    assert not old.service.relay._last_sent


@simulated
async def test_after_a_while_clients_have_to_ask_for_the_route(cluster):
    old, new = await handed_over(cluster)
    client = cluster.dial(old.address)
    await client.ask(message())
    await trio.sleep(RELAY_S + 1)
    with pytest.raises(RequestError, match="the slave 1 of broker-a"):
        await client.ask(message())


@simulated
async def test_a_new_master_that_is_gone_is_a_refusal_that_producers_repeat(cluster):
    old, new = await handed_over(cluster)
    client = cluster.dial(old.address)
    await new.stop()
    with pytest.raises(RequestError, match="could not be passed on") as refused:
        await client.ask(message(), 10)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


@simulated
async def test_pulls_are_not_passed_on(cluster):
    old, new = await handed_over(cluster)
    client = cluster.dial(old.address)
    await client.ask(message())
    with pytest.raises(RequestError):
        await client.ask(pull(topic="unknown"))
    assert old.service.relay.passed_on == 1


@simulated
async def test_a_request_that_was_passed_on_is_not_passed_on_again(cluster):
    """Two brokers that handed over to each other would send it to and fro for the whole time."""
    first, second = await handed_over(cluster)
    second.service.relay = back = Relay(first.address, cluster.client, trio.current_time() + RELAY_S)
    await second.service.rebuild(lambda config: change_config(config, broker_role=SLAVE, broker_id=2))
    cluster.nursery.start_soon(back.run)
    await settle()
    with pytest.raises(RequestError, match="the slave 2 of broker-a"):
        await cluster.dial(first.address).ask(message())
    assert (first.service.relay.passed_on, back.passed_on) == (1, 0)


@pytest.mark.parametrize("broker_role", [SLAVE, ASYNC_MASTER])
@simulated
async def test_nothing_is_passed_on_after_another_change_of_role(cluster, broker_role):
    old, new = await handed_over(cluster)
    relay = old.service.relay
    broker_id = 3 if broker_role == SLAVE else 0
    client = cluster.dial(old.address)
    assert len(new.service.server.connections) == 1
    await client.ask(ChangeBrokerRole(broker_role=broker_role, broker_id=broker_id, force=True), 30)
    assert old.service.relay is None
    assert not relay.is_active
    await settle()
    assert not new.service.server.connections
    if broker_role == SLAVE:
        with pytest.raises(RequestError, match="the slave 3 of broker-a"):
            await client.ask(message())
    else:
        await client.ask(message())
        assert old.broker.store.max_physical_offset > 0
    assert relay.passed_on == 0


@simulated
async def test_a_new_master_that_does_not_know_yet_that_it_is_one_is_asked_again(cluster):
    """With ``max_promotion_s``: the former master of a controller hears of the election first."""
    old, new = await cluster.add_broker(), await cluster.add_broker(host="10.0.1.77")
    for node in (old, new):
        await node.service.rebuild(lambda config: change_config(config, broker_role=SLAVE, broker_id=1))
    end_s = trio.current_time() + RELAY_S
    old.service.pass_on_to(Relay(new.address, cluster.client, end_s, max_promotion_s=3))
    cluster.nursery.start_soon(old.service.relay.run)
    client = cluster.dial(old.address)

    async def promote_later():
        await trio.sleep(1)
        await new.service.rebuild(lambda config: change_config(config, broker_role=ASYNC_MASTER, broker_id=0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(promote_later)
        await client.ask(message(body=b"early"), 10)
    assert bodies(await cluster.dial(new.address).ask(pull())) == [b"early"]
    await new.service.rebuild(lambda config: change_config(config, broker_role=SLAVE, broker_id=1))
    await trio.sleep(3)
    with pytest.raises(RequestError, match="a slave takes no such request") as refused:
        await client.ask(message(), 10)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
