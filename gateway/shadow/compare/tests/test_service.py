import json
from random import Random

import pytest
import trio

from codec.command import encode_command
from gateway.http_server.errors import ConsoleError
from gateway.shadow.commands.parity import describe_parity
from gateway.shadow.compare.answer_diff import ComparisonTerms
from gateway.shadow.compare.parity import ParityRange
from gateway.shadow.compare.service import ComparisonService, match_topics
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.compare.tests.test_read_repeater import filled
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.tests.two_clusters import ClusterView, two_clusters
from gateway.shadow.traffic.exchange import Hub
from gateway.tests import cluster as simulation
from gateway.tests.cluster import pull
from remoting.requests.topics import GetTopicStatsInfo


class Routes:
    def __init__(self):
        self.served = {}

    def get(self, path, function):
        self.served[path] = function

    post = get


def comparing_of(primary, target, *, second=None, **settings):
    """Return a comparison service with cluster clients of its own, as in the gateway."""
    return ComparisonService(
        CompareSettings(**{"repeated_reads": 1.0, "lag_ms": 0, "settle_ms": 10, **settings}),
        ComparisonTerms(),
        {},
        ClusterView(primary.simulated),
        ClusterView(target.simulated),
        map_offset=lambda broker, topic, queue, offset: offset,
        now_ms=primary.simulated.clock.now_ms,
        second=second and ClusterView(second.simulated),
        chance=Random(1),
    )


async def pulled(primary, hub):
    command = pull("orders", 0).to_command()
    answer = await primary.ask_command(primary.master("broker-a"), command)
    hub.publish_exchange(make_exchange(11, encode_command(command), encode_command(answer)))


@two_clusters
async def test_from_traffic_to_json(primary, target):
    await filled(primary, [b"a", b"b"])
    await filled(target, [b"a", b"x"])
    comparing = comparing_of(primary, target)
    await primary.simulated.nursery.start(comparing.run)
    hub, routes = Hub(), Routes()
    hub.add_observer(comparing.observer)
    comparing.register_routes(routes)
    await trio.sleep(1)
    await pulled(primary, hub)
    await trio.sleep(2)
    status = json.loads(json.dumps(routes.served["/compare"]({})))
    assert (status["compared"], status["diff_rate"]) == (1, 1.0)
    assert status["requests"][0]["fields"] == {"messages[].body": 1}
    samples = routes.served["/samples"]({"request": "PULL_MESSAGE"})["samples"]
    assert "bytes, digest" in samples[0]["primary"]
    assert {each.name for each in comparing.collect_metrics()} >= {
        "compare_diff_rate",
        "compared_total",
        "compare_waiting",
    }


@pytest.mark.parametrize("asks_second", [True, False])
@two_clusters
async def test_differing_second_reads_are_noise(primary, target, asks_second):
    nursery = primary.simulated.nursery
    second = ClusterView(simulation.Cluster(nursery, primary.simulated.clock))
    await nursery.start(second.run)
    await second.add_broker()
    for side, body in ((primary, b"a"), (target, b"b"), (second, b"c")):
        await filled(side, [body])
    comparing = comparing_of(
        primary, target, second=second if asks_second else None, second_reads=1.0, noise_reads=2
    )
    await nursery.start(comparing.run)
    hub = Hub()
    hub.add_observer(comparing.observer)
    for _ in range(6):
        await pulled(primary, hub)
        await trio.sleep(2)
    (row,) = comparing.status()["requests"]
    assert row["compared"] == 6
    assert (row["differing"] < 6) == bool(comparing.status()["noise"]) == asks_second
    await second.simulated.stop()


@two_clusters
async def test_parity_when_asked(primary, target):
    await filled(primary, [b"a", b"b"])
    await filled(target, [b"a"])
    comparing = comparing_of(primary, target)
    await primary.simulated.nursery.start(comparing.run)
    await trio.sleep(1)
    routes = Routes()
    comparing.register_routes(routes)
    value = await routes.served["/parity"]({"topics": ["orders"]})
    assert (value["holds"], value["missing"], value["same"]) == (False, 1, 1)
    assert (await comparing.check_parity(["orders"], ParityRange(until_offset=1))).holds
    with pytest.raises(ConsoleError):
        await routes.served["/parity"]({"topics": ["orders"], "from_ms": "x"})


@two_clusters
async def test_patterns_of_topics(primary, target):
    await filled(primary, [])
    await filled(primary, [], topic="payments")
    await trio.sleep(
        1
    )  # until the broker, which asks for the owner of its name first, has registered the topic
    assert await match_topics(primary, ["*"]) == (["orders", "payments"], {})
    assert await match_topics(primary, ["pay*"]) == (["payments"], {})
    assert await match_topics(primary, ["orders"]) == (["orders"], {})
    assert await match_topics(primary, ["Pay*", "x"]) == ([], {"Pay*": ["payments"], "x": []})


@two_clusters
async def test_parity_says_which_retry_and_dead_letter_topics_it_left_out(primary, target):
    """Parity of all topics found nothing wrong while the dead letters of both clusters differed."""
    await filled(primary, [b"a"])
    await filled(target, [b"a"])
    await filled(primary, [b"b"], topic="%DLQ%GID")
    await filled(target, [b"c"], topic="%DLQ%other")
    comparing = comparing_of(primary, target)
    await primary.simulated.nursery.start(comparing.run)
    await trio.sleep(1)
    value = (await comparing.check_parity(["*"])).to_value()
    assert (value["holds"], value["left_out"]) == (True, 2)
    assert value["left_out_topics"] == ["%DLQ%GID", "%DLQ%other"]
    assert "not compared: 2 retry and dead-letter topics (%DLQ%GID, %DLQ%other)" in describe_parity(value)
    value = (await comparing.check_parity(["*", "%*"])).to_value()
    assert (value["holds"], value["left_out"], value["problems"]) == (False, 0, 2)
    assert "%DLQ%other  -1: only the target has this topic, with 1 messages" in describe_parity(value)


@two_clusters
async def test_a_target_broker_that_does_not_answer_is_a_problem_of_its_topic_alone(primary, target):
    """The finished comparison of all topics was lost."""
    for side in (primary, target):
        await filled(side, [b"a"])
    await filled(target, [b"c"], topic="%DLQ%other")
    comparing = comparing_of(primary, target)
    await primary.simulated.nursery.start(comparing.run)
    await trio.sleep(1)
    asked = comparing.target.ask_broker

    async def failing(name, request, timeout_s=None):
        if isinstance(request, GetTopicStatsInfo):
            raise OSError("unreachable")
        return await asked(name, request, timeout_s)

    comparing.target.ask_broker = failing
    value = (await comparing.check_parity(["*", "%*"])).to_value()
    assert (value["holds"], value["problems"]) == (False, 1)
    assert (
        "%DLQ%other  -1: only the target has this topic, and it cannot be read: OSError"
        in describe_parity(value)
    )
    value = (await comparing.check_parity(["%DLQ%other"])).to_value()
    assert (value["empty"], value["problems"]) == (False, 1)
    assert (await comparing.check_parity(["orders"])).left_out_topics == []


@two_clusters
async def test_unreachable_clusters_do_not_prevent_the_start(primary, target):
    await filled(primary, [b"a"])
    for node in list(target.simulated.nodes.values()):
        await node.stop()
    comparing = comparing_of(primary, target)
    await primary.simulated.nursery.start(comparing.run)
    hub = Hub()
    hub.add_observer(comparing.observer)
    await pulled(primary, hub)
    await trio.sleep(60)
    assert comparing.status()["left_out"] == {"no answer": 1}


@two_clusters
async def test_learned_noise_is_restored_after_a_restart(primary, target, tmp_path):
    file = tmp_path / "noise.json"
    file.write_text("damaged")
    first = comparing_of(primary, target, noise_file=str(file), noise_reads=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(first.run)
        first._noise.record_second_read(30, ["offset"])
        nursery.cancel_scope.cancel()
    second = comparing_of(primary, target, noise_file=str(file), noise_reads=1)
    await primary.simulated.nursery.start(second.run)
    assert second.status()["noise"] == [{"request": "GET_MAX_OFFSET", "field": "offset", "share": 1.0}]


@pytest.mark.parametrize(
    "given",
    [
        {"from_ms": "x"},
        {"from_ms": -1},
        {"until_ms": -(2**63)},
        {"from_offset": -1},
        {"until_offset": 2**63},
        {"until_offset": 10**400},
        {"from_ms": 1.5},
        {"from_ms": True},
        {"topics": "orders"},
        {"topics": [1]},
        {"topics": [""]},
        {"topics": ["*" * 300]},
        {"topics": ["a*"] * 1001},
    ],
)
@two_clusters
async def test_parity_requests_without_sense_are_refused(primary, target, given):
    comparing, routes = comparing_of(primary, target), Routes()
    comparing.register_routes(routes)
    with pytest.raises(ConsoleError) as error:
        await routes.served["/parity"](given)
    assert error.value.status == 400


@two_clusters
async def test_parity_of_an_unknown_topic_is_no_defect(primary, target):
    comparing, routes = comparing_of(primary, target), Routes()
    await primary.simulated.nursery.start(comparing.run)
    comparing.register_routes(routes)
    found = await routes.served["/parity"]({"topics": ["nothing"]})
    assert (found["holds"], found["empty"]) == (False, True)
    assert found["unmatched"] == [{"name": "nothing", "similar": []}]
