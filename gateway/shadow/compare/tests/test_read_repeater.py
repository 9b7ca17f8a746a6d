import trio

from codec.command import Command, encode_command
from gateway.shadow.compare.answer_diff import ComparisonTerms
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.read_repeater import ReadRepeater, send_reads_to
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.tests.cluster import message, pull
from remoting.requests.offsets import GetMaxOffset, QueryConsumerOffset
from remoting.requests.topics import UpdateAndCreateTopic

OWN = ComparisonTerms(longer_remarks_allowed=True)
KEPT = ComparisonTerms(same_offsets=True, longer_remarks_allowed=True)


class Trial:
    """A read repeater between two clusters, and the comparisons it reported."""

    def __init__(self, primary, target, *, settings=CompareSettings(lag_ms=0), terms=OWN, ask=None):  # noqa: B008
        self.told = []
        self.noise = LearnedNoise(settings.noise_reads, settings.noise_share, settings.noise_memory)
        self.primary, self.target = primary, target
        self.asker = ReadRepeater(
            settings, terms, self.noise, target=ask or send_reads_to(target), primary=send_reads_to(primary),
            map_offset=lambda broker, topic, queue, offset: offset, on_compared=self.told.append,
        )  # fmt: skip

    async def ask(self, request, *, second=False):
        """Send a client's request to the primary and submit the exchange to the repeater."""
        self.primary.simulated.nursery.start_soon(self.asker.run)
        self.asker.submit(await self.passing(request), second)

    async def passing(self, request):
        command = request.to_command()
        answer = await self.primary.ask_command(self.primary.master("broker-a"), command)
        return make_exchange(
            command.code,
            encode_command(command),
            encode_command(answer),
            at_s=trio.current_time(),
            share_s=0.0,
        )

    @property
    def paths(self):
        return [difference.path for compared in self.told for difference in compared.differences]


async def filled(cluster, bodies, topic="orders"):
    request = UpdateAndCreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    await cluster.ask_broker("broker-a", request)
    for number, body in enumerate(bodies):
        await cluster.ask_broker("broker-a", message(topic, body, key=f"U{number}"))


@two_clusters
async def test_a_pull_of_both(primary, target):
    for cluster in (primary, target):
        await filled(cluster, [b"a", b"b", b"c"])
    trial = Trial(primary, target)
    await trial.ask(pull("orders", 1))
    await trio.sleep(2)
    assert len(trial.told) == 1
    assert trial.paths == []


@two_clusters
async def test_a_pull_that_differs_leaves_no_trace(primary, target):
    await filled(primary, [b"a", b"b", b"c"])
    await filled(target, [b"a", b"x", b"c"])
    trial = Trial(primary, target)
    await trial.ask(pull("orders", 0), second=True)
    await trio.sleep(2)
    assert trial.paths == ["messages[].body"]
    for cluster in (primary, target):
        broker = cluster.simulated.nodes[("10.0.1.1", 10911)].broker
        assert not [key for key in broker.offsets.table if "TOOLS" in key]


@two_clusters
async def test_a_read_is_repeated_while_messages_are_on_their_way(primary, target):
    await filled(primary, [b"a", b"b", b"c"])
    await filled(target, [])
    trial = Trial(primary, target, settings=CompareSettings(lag_ms=20_000))
    await trial.ask(pull("orders", 0))
    await trio.sleep(5)
    assert trial.told == []
    for number, body in enumerate([b"a", b"b", b"c"]):
        await target.ask_broker("broker-a", message("orders", body, key=f"U{number}"))
    await trio.sleep(5)
    assert len(trial.told) == 1
    assert trial.paths == []


@two_clusters
async def test_a_message_that_never_arrives_is_a_difference(primary, target):
    await filled(primary, [b"a"])
    await filled(target, [])
    trial = Trial(primary, target, settings=CompareSettings(lag_ms=20_000))
    await trial.ask(pull("orders", 0))
    await trio.sleep(30)
    assert trial.paths == ["code"]


@two_clusters
async def test_fields_that_differ_in_the_primary_itself_are_left_out_and_learned(primary, target):
    await filled(primary, [b"a"])
    await filled(target, [b"a"])
    trial = Trial(primary, target, terms=KEPT)
    for number in range(10):
        await trial.ask(GetMaxOffset(topic="orders", queue_id=0), second=True)
        await primary.ask_broker("broker-a", message("orders", b"more", key=f"M{number}"))
        await trio.sleep(3)
    assert trial.paths == []
    assert trial.noise.is_noise(GetMaxOffset.code, "offset")
    await trial.ask(GetMaxOffset(topic="orders", queue_id=0))
    await trio.sleep(3)
    assert trial.paths == []


@two_clusters
async def test_refusals_are_compared(primary, target):
    await filled(primary, [])
    trial = Trial(primary, target)
    await trial.ask(GetMaxOffset(topic="orders", queue_id=0))
    await trial.ask(QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0))
    await trio.sleep(3)
    assert len(trial.told) == 2


@two_clusters
async def test_a_target_that_is_gone_is_counted_and_nothing_else(primary, target):
    await filled(primary, [b"a"])

    async def gone(broker, command):
        raise OSError("gone")

    trial = Trial(primary, target, ask=gone)
    await trial.ask(pull("orders", 0))
    await trio.sleep(3)
    assert trial.told == []
    assert trial.asker.left_out == {"no answer": 1}


@two_clusters
async def test_a_stalled_target_holds_a_bounded_number(primary, target):
    await filled(primary, [b"a"])

    async def stalled(broker, command):
        await trio.sleep_forever()

    trial = Trial(primary, target, settings=CompareSettings(waiting=20, lag_ms=0), ask=stalled)
    seen = await trial.passing(pull("orders", 0))
    primary.simulated.nursery.start_soon(trial.asker.run)
    for _ in range(100):
        trial.asker.submit(seen)
        await trio.sleep(0.1)
    assert trial.asker.waiting_count <= 20
    assert trial.asker.left_out["too many repeated reads wait"] >= 60


@two_clusters
async def test_repeated_reads_are_limited_in_rate(primary, target):
    for cluster in (primary, target):
        await filled(cluster, [b"a"])
    trial = Trial(primary, target, settings=CompareSettings(repeated_reads_per_s=2, lag_ms=0))
    seen = await trial.passing(pull("orders", 0))
    primary.simulated.nursery.start_soon(trial.asker.run)
    for _ in range(50):
        trial.asker.submit(seen)
    await trio.sleep(11)
    assert 18 <= len(trial.told) <= 22


@two_clusters
async def test_garbage_from_the_target_is_a_difference(primary, target):
    async def nonsense(broker, command):
        return Command(0, flag=1, body=b"nonsense")

    await filled(primary, [b"a"])
    trial = Trial(primary, target, ask=nonsense)
    await trial.ask(pull("orders", 0))
    await trio.sleep(3)
    assert "messages" in trial.paths
