import pytest
import trio

from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from gateway.tests.cluster import simulated
from remoting.bodies.pop import QueryAssignmentRequestBody, SetMessageRequestModeRequestBody
from remoting.bodies.routes import QueueData, TopicRouteData
from remoting.errors import RequestError
from remoting.requests.pop import GetAllMessageRequestMode, QueryAssignment, SetMessageRequestMode


async def route(topic):
    if topic != "t":
        return None
    queues = [("b2", 2, 6), ("b1", 2, 6), ("b3", 2, 2)]
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=count, write_queue_nums=count, perm=perm)
            for name, count, perm in queues
        ]
    )


def start(**settings):
    world = World(**settings)
    world.broker.routes.add_source(route)
    world.topic("t", 2)
    world.beat(FakeConnection(), "t", client_id="c1")
    world.beat(FakeConnection(), "t", client_id="c2")
    return world


def ask(world, client="c1", topic="t", group="g", strategy="AVG", model="CLUSTERING"):
    body = QueryAssignmentRequestBody(
        topic=topic, consumer_group=group, client_id=client, strategy_name=strategy, message_model=model
    )
    found = world.ask_async(QueryAssignment(data=body)).data.message_queue_assignments
    if found is None:
        return None
    return [(each.mode, each.message_queue.broker_name, each.message_queue.queue_id) for each in found]


def set_mode(world, topic="t", group="g", mode="POP", shared=0):
    body = SetMessageRequestModeRequestBody(
        topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=shared
    )
    world.ask(SetMessageRequestMode(data=body))


def test_queues_of_all_brokers_that_may_be_read_are_shared():
    world = start()
    assert ask(world, "c1") == [("PULL", "b1", 0), ("PULL", "b1", 1)]
    assert ask(world, "c2", strategy="AVG_BY_CIRCLE") == [("PULL", "b1", 1), ("PULL", "b2", 1)]
    assert len(ask(world, model="BROADCASTING")) == 4


@pytest.mark.parametrize(
    "fields", [{"topic": "none"}, {"group": "nobody"}, {"strategy": "BY_MOON"}, {"client": " "}]
)
def test_no_list_where_none_can_be_told(fields):
    assert ask(start(), **fields) is None


def test_who_is_no_member_gets_nothing():
    assert ask(start(), "c9") == []


def test_a_group_that_pops_gets_brokers():
    world = start()
    set_mode(world)
    assert ask(world) == [("POP", "b1", -1), ("POP", "b2", -1)]


def test_the_mode_of_groups_that_were_not_told():
    world = start(default_message_request_mode="POP", server_load_balancer_enable=False)
    assert [mode for mode, _, _ in ask(world)] == ["POP"] * 4
    assert ask(world, topic="%RETRY%g") is None


def test_modes_are_kept_and_shown():
    world = start()
    set_mode(world, shared=3)
    again = World(files=world.files)
    table = again.ask(GetAllMessageRequestMode()).data.message_request_mode_map
    assert (table["t"]["g"].mode, table["t"]["g"].pop_share_queue_num) == ("POP", 3)


@pytest.mark.parametrize(
    ("fields", "code"), [({"topic": "%RETRY%g"}, 16), ({"topic": "none"}, 17), ({"group": "a b"}, 26)]
)
def test_refused_modes(fields, code):
    with pytest.raises(RequestError) as refused:
        set_mode(start(), **fields)
    assert refused.value.code == code


@simulated
async def test_routes_are_asked_of_namesrvs_of_this_process_and_others(cluster):
    await cluster.namesrv()
    nodes = [await cluster.add_broker(f"broker-{letter}") for letter in "ab"]
    for node in nodes:
        node.broker.topics.create_for_send("orders", "TBW102", 4)
    await trio.sleep(1)
    found = await nodes[0].broker.routes.find_route("orders")
    assert {data.broker_name for data in found.queue_datas} == {"broker-a", "broker-b"}
    assert await nodes[0].broker.routes.find_route("none") is None
    await cluster.nodes["10.0.0.1", 9876].stop()
    assert await nodes[0].broker.routes.find_route("orders") is None
