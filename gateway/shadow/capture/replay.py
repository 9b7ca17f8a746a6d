"""Replays captured requests at another cluster, in their captured order, at the captured speed or faster.

Steps come ordered from `replay_plan.py`. At most `MAX_OPEN_STEPS` of them are started at a time; each one waits until
the steps it depends on were sent or answered. A barrier (topic and group administration) runs alone. When the target
does not answer, nothing more is started and the replay reports where to resume.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from codec.command import Command
from codec.errors import CaptureError, FrameError, MessageFormatError
from codec.topics import DEFAULT_TOPIC, READ_WRITE
from gateway.shadow.capture.reader import CaptureFileReader
from gateway.shadow.capture.replay_plan import ReplayPlan, ReplayStep, to_exchange
from gateway.shadow.capture.retarget import NotReplayed, RequestRetargeter, try_learn_answer
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster, Sign
from gateway.shadow.clusters.metadata_sync import groups_of, topics_of
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.resend import is_temporary_refusal
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.declare import REQUESTS
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.topics import UpdateAndCreateTopic

MAX_OPEN_STEPS: Final = 512
"""Steps started at a time, including those that wait for others."""
MAX_REASONS: Final = 1_000
"""Reasons of refusals that are counted apart: a target may give every message one of its own."""
ANSWER_TIMEOUT_S: Final = 10.0
MAX_BUSY_S: Final = 30.0
"""Longest time to retry a request that the target refuses because it is busy."""
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 1.0


class ReplayError(Exception):
    """The target cannot take the replay; the text says why."""


@dataclass(slots=True)
class ReplayResults:
    """The results of the steps by request code; refused and skipped ones with their reasons."""

    sent: Counter[int] = field(default_factory=Counter)
    ok: Counter[int] = field(default_factory=Counter)
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    skipped: Counter[tuple[int, str]] = field(default_factory=Counter)


async def prepare_target(target: Cluster, plan: ReplayPlan, pairs: Mapping[str, str]) -> list[str]:
    """Create the topics and groups that the target's brokers lack, and return their names.

    Raises ReplayError where a topic has too few queues, RequestError where one cannot be created, and the other
    CLUSTER_ERRORS.
    """
    topics_by_broker = {name: await topics_of(target, name) for name in sorted(set(pairs.values()))}
    created = []
    for (broker, topic), queues in sorted(plan.queue_counts.items()):
        target_broker = pairs[broker]
        config = topics_by_broker[target_broker].get(topic)
        if config is None:
            await target.ask_broker(target_broker, _create_topic_request(topic, queues))
            created.append(topic)
        elif config.write_queue_nums < queues:
            raise ReplayError(
                f"topic {topic} has {config.write_queue_nums} queues at {target_broker}, the capture needs {queues}"
            )
    for name in topics_by_broker:
        groups = {group for broker, group in plan.groups if pairs[broker] == name}
        created += await _create_groups(target, name, groups)
    return created


async def _create_groups(target: Cluster, broker: str, groups: set[str]) -> list[str]:
    """Create the groups that a broker lacks, and return their names.

    A broker refuses offsets of unknown groups. Heartbeats would create them, but are not replayed.
    """
    existing_groups = (await groups_of(target, broker)).subscription_group_table if groups else {}
    missing = sorted(groups - existing_groups.keys())
    for group in missing:
        data = SubscriptionGroupConfig(group_name=group)
        await target.ask_broker(broker, UpdateAndCreateSubscriptionGroup(data=data))
    return missing


def _create_topic_request(topic: str, queues: int) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=READ_WRITE,
        topic_filter_type="SINGLE_TAG",
    )


class Replay:
    """One replay. ``pairs`` maps captured brokers to the target's; ``speed`` None: as fast as the target answers.

    `failure` is the reason the replay ended early because the target did not answer, else "".
    """

    def __init__(
        self,
        plan: ReplayPlan,
        files: Sequence[CaptureFileReader],
        target: Cluster,
        pairs: Mapping[str, str],
        *,
        speed: float | None,
        now_ms: Callable[[], int],
        sign: Sign | None = None,
    ) -> None:
        self.results = ReplayResults(skipped=plan.skipped.copy())
        self.failure = ""
        self.finished_count = 0
        self._steps = plan.steps
        self._files = files
        self._target = target
        self._pairs = pairs
        self._speed = speed
        self._sign = sign
        self._retargeter = RequestRetargeter(now_ms)
        self._window = trio.Semaphore(MAX_OPEN_STEPS)
        self._started_count = 0
        self._open_steps: set[int] = set()
        self._failed_steps: set[int] = set()
        self._sent: dict[int, trio.Event] = {}
        self._answered: dict[int, trio.Event] = {}
        self._idle = trio.Event()
        self._stopping = trio.CancelScope()

    def stop(self) -> None:
        """Start nothing more; `run` returns when all open steps are answered."""
        self._stopping.cancel()

    async def run(self) -> None:
        """Replay all steps, until `stop` is called or the target does not answer."""
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            with self._stopping:
                for number, step in enumerate(self._steps):
                    await self._sleep_until_due(step, began_s)
                    if step.barrier:
                        await self._wait_until_idle()
                    await self._window.acquire()
                    self._start_step(number, nursery)
                    if step.barrier:
                        await self._wait_until_idle()

    async def _sleep_until_due(self, step: ReplayStep, began_s: float) -> None:
        if self._speed is not None:
            offset_s = (step.due_us - self._steps[0].due_us) / 1e6 / self._speed
            await trio.sleep_until(began_s + offset_s)

    async def _wait_until_idle(self) -> None:
        while self._open_steps:
            self._idle = trio.Event()
            await self._idle.wait()

    def _start_step(self, number: int, nursery: trio.Nursery) -> None:
        self._started_count = number + 1
        self._open_steps.add(number)
        self._sent[number], self._answered[number] = trio.Event(), trio.Event()
        nursery.start_soon(self._run_step, number)

    async def _run_step(self, number: int) -> None:
        step = self._steps[number]
        try:
            if step.after_sending in self._sent:
                await self._sent[step.after_sending].wait()
            for dependency in step.after_answers:
                if dependency in self._answered:
                    await self._answered[dependency].wait()
            # The target has stopped answering. This step is repeated when the replay is resumed.
            if self.failure:
                self._failed_steps.add(number)
            else:
                await self._send_step(number, step)
                self.finished_count += 1
        except CLUSTER_ERRORS as error:
            self.failure = self.failure or f"{type(error).__name__}: {error}"
            self._failed_steps.add(number)
            self.stop()
        except (CaptureError, FrameError, MessageFormatError, ValueError, LookupError, TypeError) as error:
            # A record that no gateway wrote: the others can be replayed.
            self.results.skipped[step.code, f"the record is malformed: {type(error).__name__}"] += 1
            self.finished_count += 1
        finally:
            self._mark_sent(number)
            self._answered.pop(number).set()
            self._open_steps.discard(number)
            self._idle.set()
            self._window.release()

    def _mark_sent(self, number: int) -> None:
        event = self._sent.pop(number, None)
        if event is not None:
            event.set()

    async def _send_step(self, number: int, step: ReplayStep) -> None:
        exchange = to_exchange(self._files[step.file_index].read_record(step.block, step.record_number))
        target_broker = self._pairs[exchange.broker]
        try:
            command = self._retargeter.retarget_request(exchange, target_broker)
        except NotReplayed as reason:
            self.results.skipped[step.code, str(reason)] += 1
        else:
            self.results.sent[step.code] += 1
            self._count_answer(exchange, await self._ask_until_not_busy(number, target_broker, command))

    async def _ask_until_not_busy(self, number: int, broker: str, command: Command) -> Command:
        """Return the target's answer, retrying with back-off while the target is busy. Raises CLUSTER_ERRORS."""
        give_up_s, backoff_s = trio.current_time() + MAX_BUSY_S, _FIRST_BACKOFF_S
        while True:
            address = await self._target.find_master(broker)
            connection = await self._target.connection(address)
            if self._sign is not None:
                self._sign(command)
            # ask_command writes the request before any other task runs, so it counts as sent now.
            self._mark_sent(number)
            answer = await connection.ask_command(command, ANSWER_TIMEOUT_S)
            if not is_temporary_refusal(answer.code, answer.remark) or trio.current_time() > give_up_s:
                return answer
            # It may be busy, or have become a slave.
            self._target.doubt_master(address)
            await trio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    def _count_answer(self, exchange: Exchange, answer: Command) -> None:
        code = exchange.code
        declared = REQUESTS.get(code)
        if answer.code not in (declared.ACCEPT_CODES if declared is not None else (0,)):
            self._count_refusal(code, f"code {answer.code}: {(answer.remark or '')[:200]}")
        elif not try_learn_answer(self._retargeter, exchange, answer):
            self._count_refusal(code, "the answer does not contain the position of the message")
        else:
            self.results.ok[code] += 1

    def _count_refusal(self, code: int, reason: str) -> None:
        refused = self.results.refused
        is_counted_apart = (code, reason) in refused or len(refused) < MAX_REASONS
        refused[code, reason if is_counted_apart else "another reason"] += 1

    @property
    def step_count(self) -> int:
        """The number of planned steps."""
        return len(self._steps)

    def find_resume_point(self) -> tuple[int, int] | None:
        """Return where to resume an interrupted replay: ms since 1970 for ``--from``, and how many steps that repeats.

        None when every step was done.
        """
        unfinished_numbers = [
            *self._failed_steps,
            *self._open_steps,
            *range(self._started_count, len(self._steps)),
        ]
        if not unfinished_numbers:
            return None
        from_ms = min(self._steps[number].wall_ms for number in unfinished_numbers)
        unfinished = set(unfinished_numbers)
        again = sum(
            step.wall_ms >= from_ms for number, step in enumerate(self._steps) if number not in unfinished
        )
        return from_ms, again
