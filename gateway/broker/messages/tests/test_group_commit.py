import pytest
import trio

from gateway.broker.assembly.metrics import store_metrics
from gateway.broker.messages.answer_gate import AnswerGate
from gateway.broker.messages.group_commit import GroupCommit
from gateway.tests.cluster import bodies, inline, message, pull, settle, simulated
from remoting.errors import RequestError
from remoting.limits import ConnectionLimits
from remoting.tests.virtual import virtual
from storage.crash_files import CrashFiles
from storage.flush_guard import FLUSH_FAILED

SYNC = {"flush_disk_type": "SYNC_FLUSH"}
FLUSH_DISK_TIMEOUT = 10
SERVICE_NOT_AVAILABLE = 14


class Disk:
    """Controls the end and the outcome of a store's flush."""

    def __init__(self, store):
        self._flush = store.flush
        self.flushes = 0
        self.errors = []
        self.go = trio.Event()
        self.go.set()

    async def run(self, work):
        self.flushes += 1
        if not self.errors:
            work()  # What comes during the flush is not covered by it.
        await self.go.wait()
        if self.errors:
            raise self.errors.pop()

    def stall(self):
        self.go = trio.Event()


async def started(cluster, **settings):
    node = await cluster.add_broker(**{**SYNC, **settings})
    disk = Disk(node.broker.store)
    node.broker.group_commit._run_blocking = disk.run
    return node, disk, cluster.dial(node.address)


class Sends:
    """Outstanding sends, and their answers with arrival times."""

    def __init__(self, cluster, connection):
        self._cluster, self._connection = cluster, connection
        self.start = cluster.clock.now_ms()
        self.ended = []

    async def send(self, count=1, **more):
        for _ in range(count):
            self._cluster.nursery.start_soon(self._send, message(**more))
        await settle()

    async def _send(self, request):
        try:
            reply = await self._connection.ask(request, timeout_s=60)
            self.ended.append((self._cluster.clock.now_ms() - self.start, reply.code, reply.queue_offset))
        except RequestError as error:
            self.ended.append((self._cluster.clock.now_ms() - self.start, error.code, error.remark))


@simulated
async def test_answers_wait_for_the_disk_and_share_its_flushes(cluster):
    node, disk, client = await started(cluster)
    disk.stall()
    sends = Sends(cluster, client)
    await sends.send()
    await sends.send(50)
    assert not sends.ended
    assert disk.flushes == 1
    # Readers do not wait for the disk, as officially.
    assert len(bodies(await cluster.dial(node.address).ask(pull()))) == 32
    disk.go.set()
    await settle()
    assert sorted(offset for _, _, offset in sends.ended) == list(range(51))
    assert disk.flushes == 2, "all that came during one flush share the next"
    assert node.broker.store.durable_offset == node.broker.store.max_physical_offset
    assert node.broker.answer_gate.held_count == 0


@simulated
async def test_a_flush_that_could_not_be_tried_is_tried_again_before_anything_is_answered(cluster, caplog):
    node, disk, client = await started(cluster)
    disk.errors = [OSError("disk"), OSError("disk")]
    sends = Sends(cluster, client)
    await sends.send()
    await trio.sleep(0.5)
    await sends.send()
    await trio.sleep(10)
    assert sorted(sends.ended) == [(2000, 0, 0), (2000, 0, 1)]
    assert caplog.text.count("flush failed") == 2


@pytest.mark.parametrize("trouble", ["slow", "broken"])
@simulated
async def test_an_answer_that_waits_too_long_says_so(cluster, trouble):
    node, disk, client = await started(cluster, sync_flush_timeout_ms=3000)
    if trouble == "slow":
        disk.stall()
    else:
        disk.errors = [OSError("disk")] * 10
    sends = Sends(cluster, client)
    await sends.send()
    await trio.sleep(1.5)
    await sends.send()
    await trio.sleep(4)
    assert sends.ended == [(3000, FLUSH_DISK_TIMEOUT, 0), (4500, FLUSH_DISK_TIMEOUT, 1)]
    disk.errors.clear()
    disk.go.set()
    await trio.sleep(1)
    sends.start = cluster.clock.now_ms()
    await sends.send()
    assert sends.ended[2:] == [(0, 0, 2)], "after that all is well again"
    assert client.outstanding_requests == 0


@simulated
async def test_a_message_that_need_not_wait_is_answered_at_once_and_flushed_soon(cluster):
    node, disk, client = await started(cluster)
    disk.stall()
    sends = Sends(cluster, client)
    await sends.send(properties={"WAIT": "false"})
    assert ([offset for _, _, offset in sends.ended], disk.flushes) == ([0], 1)
    await sends.send(properties={"WAIT": "true"})
    await sends.send(properties={"NO_WAIT": "false"})
    assert len(sends.ended) == 1
    disk.go.set()
    await settle()
    assert len(sends.ended) == 3


@simulated
async def test_a_oneway_send_is_flushed_too(cluster):
    node, disk, client = await started(cluster)
    client.send_oneway(message())
    await settle()
    assert disk.flushes == 1
    assert node.broker.store.durable_offset == node.broker.store.max_physical_offset > 0


@simulated
async def test_held_answers_count_as_requests_under_way(cluster):
    node, disk, client = await started(cluster, limits=ConnectionLimits(max_outstanding_requests=2))
    disk.stall()
    sends = Sends(cluster, client)
    await sends.send(3)
    assert sends.ended == [(0, 2, "[OVERLOAD]system busy, start flow control for a while")]
    assert node.broker.store.max_offset("orders", 0) == 2, "what is refused is not stored"
    disk.go.set()
    await settle()
    await sends.send()
    assert sorted(offset for _, code, offset in sends.ended if code == 0) == [0, 1, 2]


@simulated
async def test_a_connection_that_closes_meanwhile_is_no_trouble(cluster):
    node, disk, client = await started(cluster)
    other = cluster.dial(node.address)
    disk.stall()
    gone, stays = Sends(cluster, client), Sends(cluster, other)
    client.send_oneway(message())
    cluster.nursery.start_soon(suppressed, client.ask, message())
    await settle()
    await stays.send()
    client.close()
    await settle()
    disk.go.set()
    await settle()
    assert len(stays.ended) == 1
    assert not gone.ended


async def suppressed(function, *args):
    with pytest.raises(Exception, match="closed"):
        await function(*args)


@simulated
async def test_stopping_lets_held_answers_leave(cluster):
    node, disk, client = await started(cluster)
    disk.stall()
    sends = Sends(cluster, client)
    await sends.send()
    cluster.nursery.start_soon(node.stop)
    await trio.sleep(1)
    assert not sends.ended
    disk.go.set()
    await node.ended.wait()
    await settle()
    assert [offset for _, _, offset in sends.ended] == [0]


def fail_flushes(files, part):
    files.flush_fails = lambda path: part in path


@simulated
async def test_a_flush_that_the_disk_refused_is_never_taken_for_done(cluster, caplog):
    files = CrashFiles()
    node = await cluster.add_broker(**SYNC, files=files)
    client, go = cluster.dial(node.address), trio.Event()

    async def run_later(work):
        await go.wait()
        work()

    before = Sends(cluster, client)
    await before.send()
    assert [code for _, code, _ in before.ended] == [0]
    fail_flushes(files, "commitlog")
    node.broker.group_commit._run_blocking = run_later
    sends = Sends(cluster, client)
    await sends.send(3)
    assert not sends.ended
    go.set()
    await settle()
    fail_flushes(files, "nothing any more")
    assert [code for _, code, _ in sends.ended] == [SERVICE_NOT_AVAILABLE] * 3
    for _, _, remark in sends.ended:
        assert "a flush to the disk failed" in remark
        assert "broker-a" not in remark
    assert client.outstanding_requests == 0
    later = Sends(cluster, client)
    for _ in range(3):
        await trio.sleep(100)
        await later.send()
        await later.send(properties={"DELAY": "1"})
        failing = [health.name for health in node.service.tasks.failing]
        assert "flush" in failing
    assert [code for _, code, _ in later.ended] == [SERVICE_NOT_AVAILABLE] * 6
    assert bodies(await client.ask(pull()))[0] == b"hello"
    assert "background task cannot write to the disk" in caplog.text
    metrics = {metric.name: metric.value for metric in store_metrics("broker-a", node.broker.store)}
    assert metrics == {"store_writable": 0, "store_flush_failed": 1, "store_disk_full": 0}


async def refused_after_a_failed_flush(cluster, files, part, wait_s):
    """Let flushes of one part of the store fail for a while; return the broker, which refuses sends from then on."""
    node = await cluster.add_broker(files=files)
    sends = Sends(cluster, cluster.dial(node.address))
    await sends.send()
    fail_flushes(files, part)
    await trio.sleep(wait_s)
    fail_flushes(files, "nothing any more")
    await sends.send()
    assert [code for _, code, _ in sends.ended] == [0, SERVICE_NOT_AVAILABLE]
    return node


@simulated
async def test_a_failed_flush_stops_sends_that_do_not_wait_for_the_disk_too(cluster):
    files = CrashFiles()
    node = await refused_after_a_failed_flush(cluster, files, "commitlog", 2)
    await trio.sleep(200)
    assert {"flush", "checkpoint"} <= {health.name for health in node.service.tasks.failing}
    await node.stop()
    assert files.small["/broker-a/abort"] == FLUSH_FAILED


@simulated
async def test_a_failed_flush_of_queue_files_stops_sends(cluster):
    await refused_after_a_failed_flush(cluster, CrashFiles(), "consumequeue", 3)


class NoFlushes:
    """Flushes of which none has failed."""

    def check(self):
        pass


class Store:
    """The part of a store that a flush needs."""

    flushes = NoFlushes()

    def __init__(self):
        self.durable_offset = self.max_physical_offset = 0
        self.flushed_at = []

    def flush(self):
        self.flushed_at.append(trio.current_time())
        self.durable_offset = self.max_physical_offset


@virtual
async def test_without_synchronous_flush_the_disk_follows_at_intervals_when_there_is_something():
    store = Store()
    commit = GroupCommit(store, synchronous=False, interval_ms=500, run_blocking=inline)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        start = trio.current_time()
        await trio.sleep(1.2)
        store.max_physical_offset = 10
        await trio.sleep(2)
        assert [at - start for at in store.flushed_at] == pytest.approx([1.5])
        nursery.cancel_scope.cancel()


class Answers:
    """Stands for a connection; notes each answer with the number of flushes before it."""

    def __init__(self, store):
        self.outstanding_requests = 0
        self.written = []
        self._store = store

    def write(self, data):
        self.written.append((data, len(self._store.flushed_at)))


@virtual
async def test_an_answer_held_while_a_flush_runs_waits_for_the_next():
    class Busy(Store):
        def flush(self):
            super().flush()
            if len(self.flushed_at) == 1:
                self.max_physical_offset += 10
                assert gate.hold(answers, b"second", self.max_physical_offset) is None

    store = Busy()
    store.max_physical_offset = 10
    answers = Answers(store)
    commit = GroupCommit(store, synchronous=True, interval_ms=500, run_blocking=inline)
    gate = AnswerGate(store, commit, flush_timeout_ms=5000)
    assert gate.hold(answers, b"first", store.max_physical_offset) is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert answers.written == [(b"first", 1), (b"second", 2)]


@virtual
async def test_no_answer_leaves_after_a_flush_that_ended_in_an_error():
    class Failing(Store):
        def flush(self):
            super().flush()
            if len(self.flushed_at) == 1:
                raise OSError("no file descriptor is left")

    store = Failing()
    store.max_physical_offset = 10
    answers = Answers(store)
    commit = GroupCommit(store, synchronous=True, interval_ms=500, run_blocking=inline)
    gate = AnswerGate(store, commit, flush_timeout_ms=5000)
    assert gate.hold(answers, b"first", store.max_physical_offset) is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    assert answers.written == [(b"first", 2)]
