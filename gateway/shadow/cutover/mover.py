"""Takes the steps of moves, one at a time: check, do the work, write the file, then let requests follow.

Theory of operation. A step becomes valid when `move_file` has stored it; work before that can be repeated, work after
that only follows from the stored state. So a crash leaves behind:

- before the file is written: the old state. Held sends are lost with their connections, and clients send them again
  to the same side. Copied messages, offsets and locks stay; the next attempt finds them and continues there.
- after the file is written: the new state. At the next start `resume_moves` makes mirroring and the director follow it.

Switching producers is the only step that clients notice. Sends of the topic are held, at most for `hold_sends_ms`,
while the last ones are answered and reach the other side; then they continue on the new side. If the pause does not
suffice the step is refused and sends continue as before.

`docs/reference/cutover-guarantees.md` says what each step guarantees. The steps themselves are in `moves`, the
measurements in `checks`.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import trio

from codec.topics import PERM_WRITE, dlq_topic, retry_topic
from gateway.http_server.errors import OperationRefused
from gateway.runtime.metrics import Metric
from gateway.shadow.clusters.cluster_pair import LOOKUP_ERRORS, ClusterPair
from gateway.shadow.clusters.metadata_sync import find_topic, topic_request
from gateway.shadow.cutover.bypass_watch import BypassWatch
from gateway.shadow.cutover.checks import ABANDONED_RETRIES_CHECK, MoveCheck, MoveChecks, run_check
from gateway.shadow.cutover.copy_back import CopyBack
from gateway.shadow.cutover.dead_letters import DEAD_LETTERS_CHECK, DeadLetters
from gateway.shadow.cutover.director import MoveDirector
from gateway.shadow.cutover.group_transfer import GroupTransfer
from gateway.shadow.cutover.move_file import MoveFile
from gateway.shadow.cutover.moves import FORWARD_STATES, Move, MoveState, MoveStep
from gateway.shadow.cutover.retry_topics import pop_retry_topics
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.traffic.exchange import Side
from remoting.bodies.topics import TopicConfig
from storage.errors import StoreFull

log = logging.getLogger(__name__)

ALLOWANCES: Final = {
    "transactions": ("transactions",),
    "delays": ("delays", "timers"),
    "apart": ("together",),
    "bypass": ("bypass",),
    "dead-letters": (DEAD_LETTERS_CHECK,),
    "retries": (ABANDONED_RETRIES_CHECK,),
}
"""Refusals that the operator may allow, and the checks that each of them covers."""
DONE_IS_FINAL: Final = (
    "DONE cannot be undone: afterwards rollback refuses {topic}, its producers and consumers stay at the target, and "
    "nothing that the target stores is copied back to the primary"
)
RETRY_INTERVAL_S: Final = 0.5
MAX_COPY_ROUNDS: Final = 5
MAX_CHECK_AGE_S: Final = 5.0
"""Time that copying dead letters may take before the checks of a step, stale by then, are made again."""


class ConfirmationNeeded(OperationRefused):
    """The next step cannot be undone; the text says what that means."""


@dataclass(slots=True)
class StepReport:
    """One step: whether it was taken, and the checks made for it."""

    step: MoveStep
    checks: list[MoveCheck] = field(default_factory=list)
    done: bool = False

    @property
    def reason(self) -> str:
        """Why the step was not taken; empty if it was."""
        return (
            ""
            if self.done
            else "; ".join(check.reason or check.name for check in self.checks if not check.ok)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as the console shows it."""
        step = self.step
        return {
            "topic": step.topic,
            "group": step.group or "",
            "from": step.source.value,
            "to": step.goal.value,
            "done": self.done,
            "reason": self.reason,
            "checks": [check.to_dict() for check in self.checks],
        }


class Mover:
    """Moves topics and groups. `step_lock` is held during each step.

    ``bypass`` finds producers that still send to the primary itself; without it they are not looked for.
    ``replicates_dead_letters``: a target that preserves offsets also gets dead letters.
    """

    def __init__(
        self,
        move_file: MoveFile,
        director: MoveDirector,
        checks: MoveChecks,
        settings: CutoverSettings,
        now_ms: Callable[[], int],
        bypass: BypassWatch | None = None,
        *,
        replicates_dead_letters: bool = True,
    ) -> None:
        self.move_file = move_file
        self._bypass = bypass
        self.checks = checks
        self._director = director
        self._settings = settings
        self._now_ms = now_ms
        self._group_transfer = GroupTransfer(checks)
        self._dead_letters = DeadLetters(
            checks.clusters, checks.clusters.preserves_offsets and replicates_dead_letters
        )
        self._write_permission = WritePermission(checks.clusters)
        self.step_lock = trio.Lock()
        self._step_counts = {"taken": 0, "refused": 0}

    def resume_moves(self) -> None:
        """Make mirroring and the director follow the moves in the file, after a start."""
        for move in self.move_file:
            self._apply_mirroring(move)
        self._director.follow_moves(self.move_file)

    def _apply_mirroring(self, move: Move) -> None:
        """Stop mirroring of everything that is produced or consumed at the target."""
        self._set_mirroring(move.topic, move.is_mirrored)
        moves = {**self._moves_by_topic(), move.topic: move}.values()
        for group in move.groups:
            is_at_target = move.consumer_side(group) is Side.TARGET
            for topic in pop_retry_topics(group, move.topic):
                self._set_mirroring(topic, not is_at_target)
            # These belong to all topics of the group, some of which it may consume at the primary still.
            has_switched = any(
                other.consumer_side(group) is Side.TARGET for other in moves if group in other.groups
            )
            for topic in (retry_topic(group), dlq_topic(group)):
                self._set_mirroring(topic, not has_switched)

    def _set_mirroring(self, topic: str, is_mirrored: bool) -> None:
        if is_mirrored:
            self.checks.mirror.resume_mirroring(topic)
        else:
            self.checks.mirror.stop_mirroring(topic)

    def collect_metrics(self) -> Iterable[Metric]:
        """Yield the number of topics by state and of steps by result."""
        for state in MoveState:
            count = sum(move.overall_state is state for move in self.move_file)
            yield Metric("cutover_topics", count, "Topics by state.", "gauge", {"state": state.value})
        for result, count in self._step_counts.items():
            yield Metric("cutover_steps_total", count, "Steps by result.", labels={"result": result})

    # -- operations of the console ---------------------------------------------------------------------------------

    async def advance(
        self,
        topic: str,
        group: str | None = None,
        allow: Collection[str] = (),
        wait_s: float = 0.0,
        *,
        confirmed: bool = True,
        goal: MoveState | None = None,
    ) -> list[StepReport]:
        """Take the next step of a topic, or of its groups. Raises OperationRefused; see `_try_step`.

        With a ``goal``, steps that lead beyond it are not taken. A topic without groups goes from PRODUCERS_SWITCHED
        straight to DONE, and an operator whose goal is CONSUMERS_SWITCHED has not asked for that.

        Raises ConfirmationNeeded instead of taking a step that cannot be undone, unless it is ``confirmed``.
        """

        def forward_steps(move: Move) -> list[MoveStep]:
            steps = move.forward_steps(group)
            if goal is not None:
                last = FORWARD_STATES.index(goal)
                steps = [step for step in steps if FORWARD_STATES.index(step.goal) <= last]
            if not confirmed and any(step.goal is MoveState.DONE for step in steps):
                raise ConfirmationNeeded(DONE_IS_FINAL.format(topic=topic))
            return steps

        return await self._take_steps(forward_steps, topic, allow, wait_s)

    async def rollback(
        self, topic: str, group: str | None = None, allow: Collection[str] = (), wait_s: float = 0.0
    ) -> list[StepReport]:
        """Undo the last step of a topic, or of a group. Raises OperationRefused; see `_try_step`."""
        return await self._take_steps(lambda move: move.backward_steps(group), topic, allow, wait_s)

    async def plan_steps(self, topic: str, group: str | None = None) -> list[StepReport]:
        """Return the next steps with the results of their checks; nothing is changed. Raises OperationRefused."""
        async with self.step_lock:
            await self.refresh_clusters()
            move = await self._move_with_all_groups(topic)
            return [
                StepReport(
                    step,
                    [
                        *await self._check_forward_step(move, step),
                        *await self._plan_dead_letters(move, step),
                    ],
                )
                for step in move.forward_steps(group)
            ]

    async def take_write_permission(self, topic: str) -> Move:
        """Make a switched topic read-only at the primary; return the move afterwards.

        Raises OperationRefused, LOOKUP_ERRORS, OSError or StoreFull.
        """
        async with self.step_lock:
            await self.refresh_clusters()
            move = self.move_file.get_move(topic)
            if move.producer_side is not Side.TARGET:
                raise OperationRefused(
                    f"{topic} is {move.overall_state.value}: it can be made read-only at the primary once its "
                    "producers are switched"
                )
            writable = await self._write_permission.find_writable(topic)
            permissions = {broker: config.perm for broker, config in writable.items()}
            if not permissions and not move.is_read_only:
                raise OperationRefused(f"{topic} is read-only at the primary already, and not by the gateway")
            # Clients of the gateway never see the topic as read-only, so the topic routes they see change first.
            move = await self._save_move(
                move.with_taken_permissions({**move.taken_permissions, **permissions})
            )
            await self._write_permission.take(writable)
            log.info(
                "write permission taken at the primary", extra={"topic": topic, "brokers": [*permissions]}
            )
            return move

    async def give_back_write_permission(self, topic: str) -> Move:
        """Make a topic writable at the primary again; return the move afterwards.

        Raises OperationRefused, LOOKUP_ERRORS, OSError or StoreFull.
        """
        async with self.step_lock:
            await self.refresh_clusters()
            move = self.move_file.get_move(topic)
            if not move.is_read_only:
                raise OperationRefused(f"the gateway did not make {topic} read-only at the primary")
            await self._give_back(move)
            return await self._save_move(move.with_taken_permissions({}))

    async def _give_back(self, move: Move) -> MoveCheck:
        check = await self._write_permission.give_back(move.topic, move.taken_permissions)
        log.info("write permission given back at the primary", extra={"topic": move.topic})
        return check

    async def _save_move(self, move: Move) -> Move:
        await self.move_file.save_move(move)
        self._director.follow_moves(self.move_file)
        return move

    async def _take_steps(
        self, steps: Callable[[Move], list[MoveStep]], topic: str, allow: Collection[str], wait_s: float
    ) -> list[StepReport]:
        """Take steps; retry those that are refused until ``wait_s`` seconds are over.

        The lock is released between two attempts, so that other topics can move while one of them waits.
        """
        until_s = trio.current_time() + wait_s
        async with self.step_lock:
            await self.refresh_clusters()
            reports = [
                await self._try_step(step, allow) for step in steps(await self._move_with_all_groups(topic))
            ]
        while not all(report.done for report in reports) and trio.current_time() < until_s:
            await trio.sleep(RETRY_INTERVAL_S)
            async with self.step_lock:
                for index, report in enumerate(reports):
                    if not report.done:
                        reports[index] = await self._try_step(report.step, allow)
        return reports

    async def refresh_clusters(self) -> None:
        """Update the lists of brokers on both sides. Raises CLUSTER_ERRORS."""
        await self.checks.clusters.primary.refresh()
        await self.checks.clusters.target.refresh()

    async def _move_with_all_groups(self, topic: str) -> Move:
        """Return the move with every group that consumes the topic by now."""
        move = self.move_file.get_move(topic)
        if move.state is MoveState.PRODUCERS_SWITCHED:
            with_new_groups = move.with_groups(await self.checks.find_groups(topic))
            if with_new_groups is not move:
                await self.move_file.save_move(with_new_groups)
                move = with_new_groups
        return move

    # -- steps -----------------------------------------------------------------------------------------------------

    async def _try_step(self, step: MoveStep, allow: Collection[str]) -> StepReport:
        """Take one step if its checks hold.

        A cluster that does not answer counts as a check that does not hold. Raises OperationRefused if the step no
        longer fits the state.
        """
        self._require_source_state(step)
        allowed = {name for allowance in allow for name in ALLOWANCES.get(allowance, ())}
        report = StepReport(step)
        try:
            report.done = await self._procedure_of(step)(step, report.checks, allowed)
        except (*LOOKUP_ERRORS, StoreFull) as problem:
            report.checks.append(MoveCheck("step", False, "failed", f"{type(problem).__name__}: {problem}"))
        self._step_counts["taken" if report.done else "refused"] += 1
        log.info("cut-over step attempted", extra=report.to_dict())
        return report

    def _require_source_state(self, step: MoveStep) -> None:
        move = self.move_file.get_move(step.topic)
        state = move.state if step.group is None else move.groups.get(step.group)
        if state is not step.source:
            raise OperationRefused(f"{step.group or step.topic} is not {step.source.value} any more")

    def _procedure_of(
        self, step: MoveStep
    ) -> Callable[[MoveStep, list[MoveCheck], set[str]], Awaitable[bool]]:
        if step.goal in (MoveState.CAUGHT_UP, MoveState.DRAINED):
            return self._complete_checked
        if step.goal is MoveState.DONE:
            return self._finish_move
        if step.group is not None:
            return self._switch_group
        if step.goal is MoveState.PRODUCERS_SWITCHED:
            return self._switch_producers
        if step.source is MoveState.PRODUCERS_SWITCHED:
            return self._return_producers
        return self._complete_unchecked

    async def _check_forward_step(self, move: Move, step: MoveStep) -> list[MoveCheck]:
        """Return the checks that a forward step needs."""
        checks = self.checks
        if step.goal is MoveState.CAUGHT_UP:
            return await checks.check_caught_up(move)
        if step.goal is MoveState.PRODUCERS_SWITCHED:
            return [
                await checks.check_lag(move.topic),
                *await checks.check_held_back(move.topic, Side.PRIMARY),
            ]
        bypass = await self._check_bypass(move)
        if step.group is not None:
            drained = await checks.check_drained(move, step.group)
            together = await checks.check_other_topics(move, step.group, self._moves_by_topic())
            return [*bypass, *drained] if step.goal is MoveState.DRAINED else [*bypass, *drained, together]
        return [*bypass, *await checks.check_held_back(move.topic, Side.PRIMARY)]

    async def _check_bypass(self, move: Move) -> list[MoveCheck]:
        """Check that no producer of a switched topic sends to the primary past the gateway."""
        bypass = self._bypass
        if bypass is None or move.producer_side is not Side.TARGET:
            return []
        return [await run_check("bypass", lambda: bypass.check(move))]

    def _moves_by_topic(self) -> dict[str, Move]:
        return {move.topic: move for move in self.move_file}

    async def _complete_checked(self, step: MoveStep, checks: list[MoveCheck], allowed: set[str]) -> bool:
        """Take a step whose only work is to find out that its checks hold."""
        results = await self._check_forward_step(self.move_file.get_move(step.topic), step)
        # A group for which its side still holds back messages has not drained it, whatever the operator allows. Only
        # retries of a group without consumers may stay: nobody is going to consume them.
        excusable = (
            allowed & {"bypass", ABANDONED_RETRIES_CHECK} if step.goal is MoveState.DRAINED else allowed
        )
        checks += excuse_allowed(results, excusable)
        return all_hold(checks) and await self._complete_step(step)

    async def _finish_move(self, step: MoveStep, checks: list[MoveCheck], allowed: set[str]) -> bool:
        """Make the move final, after copying dead letters that only the primary has."""
        move = self.move_file.get_move(step.topic)
        checks += excuse_allowed(await self._check_forward_step(move, step), allowed)
        if not all_hold(checks):
            return False
        started_s = trio.current_time()
        for group in sorted(move.groups):
            copied = await self._dead_letters.copy_missing(move, group, Side.TARGET)
            checks += excuse_allowed([copied], allowed)
        if all_hold(checks) and trio.current_time() - started_s > MAX_CHECK_AGE_S:
            checks += excuse_allowed(await self._check_forward_step(move, step), allowed)
        return all_hold(checks) and await self._complete_step(step)

    async def _plan_dead_letters(self, move: Move, step: MoveStep) -> list[MoveCheck]:
        """Return the number of dead letters that a step to the target copies, by group."""
        groups: list[str] = []
        if step.goal is MoveState.CONSUMERS_SWITCHED and step.group is not None:
            groups = [step.group]
        elif step.goal is MoveState.DONE:
            groups = sorted(move.groups)
        return [
            await run_check(DEAD_LETTERS_CHECK, partial(self._dead_letters.plan_copy, move, group))
            for group in groups
        ]

    async def _complete_unchecked(self, step: MoveStep, checks: list[MoveCheck], allowed: set[str]) -> bool:
        return await self._complete_step(step)

    async def _complete_step(self, step: MoveStep, move: Move | None = None) -> bool:
        """Record the step, then let mirroring follow it."""
        self._apply_mirroring(await self._record_step(step, move))
        return True

    async def _record_step(self, step: MoveStep, move: Move | None = None) -> Move:
        """Store the step and let requests follow it; return the move that mirroring has to follow.

        A roll-back to MIRRORING drops the groups of the move. The returned move still has them, so that mirroring of
        their retry topics resumes too.
        """
        before = move or self.move_file.get_move(step.topic)
        after = before.after_step(step, self._now_ms())
        # The file first: a crash after it is repaired by `resume_moves`, one before it leaves the old state.
        await self.move_file.save_move(after)
        self._director.follow_moves(self.move_file)
        return replace(after, groups={**dict.fromkeys(before.groups, MoveState.DRAINED), **after.groups})

    # -- producers -------------------------------------------------------------------------------------------------

    async def _switch_producers(self, step: MoveStep, checks: list[MoveCheck], allowed: set[str]) -> bool:
        """Switch the sends of a topic to the target, in a pause of its sends."""
        topic = step.topic
        # Clients feel the pause, so no send is held for a step that would be refused anyway.
        checks += excuse_allowed(
            await self._check_forward_step(self.move_file.get_move(topic), step), allowed
        )
        if not all_hold(checks):
            return False
        done = False
        async with self.hold_sends(topic, checks):
            # The last sends are answered and mirrored: from here on the primary's queues do not grow any more.
            await self.repeat_until_ok(checks, lambda: self.checks.check_quiet(topic))
            # A transaction may have begun since the first check; its message would be stored after the recorded ends.
            held_back = await self.checks.check_held_back(topic, Side.PRIMARY)
            checks += excuse_allowed(held_back[:1], allowed)
            if all_hold(checks):
                # The ends separate the messages that a group must still read at the primary from those at the target.
                ends, groups = await self.checks.queue_ends(topic), await self.checks.find_groups(topic)
                move = self.move_file.get_move(topic).with_ends(ends).with_groups(groups)
                done = await self._complete_step(step, move)
        return done

    @contextlib.asynccontextmanager
    async def hold_sends(self, topic: str, checks: list[MoveCheck]) -> AsyncIterator[None]:
        """Hold the sends of a topic while the block runs; cancel the block after `hold_sends_ms`.

        A cancelled block leaves the check "pause", which does not hold, in ``checks``. Held sends continue afterwards
        on the side that the moves say by then.
        """
        self._director.hold_sends(topic)
        try:
            with trio.move_on_after(self._settings.hold_sends_ms / 1000) as limit:
                yield
            if limit.cancelled_caught:
                reason = "sends must not wait longer; they continue as before"
                checks.append(MoveCheck("pause", False, f"{self._settings.hold_sends_ms} ms", reason))
        finally:
            self._director.release_sends(topic)

    async def repeat_until_ok(self, checks: list[MoveCheck], run: Callable[[], Awaitable[MoveCheck]]) -> None:
        """Repeat a check until it holds. ``checks`` gets only its last result, also if the pause ends first."""
        check_index = len(checks)
        while True:
            checks[check_index:] = [await run()]
            if checks[check_index].ok:
                return
            await trio.sleep(self._settings.poll_ms / 1000)

    async def _return_producers(self, step: MoveStep, checks: list[MoveCheck], allowed: set[str]) -> bool:
        """Switch the sends of a topic back to the primary, after copying what only the target has."""
        topic = step.topic
        move = self.move_file.get_move(topic)
        checks += excuse_allowed(await self.checks.check_held_back(topic, Side.TARGET), allowed)
        if not all_hold(checks):
            return False
        copy = await CopyBack.start(self.checks.clusters, topic, move.ends)
        done = False
        async with self._pause_bypass_watch(topic, copy):
            # Most messages are copied while producers still send, so that few are left for the pause.
            for _ in range(MAX_COPY_ROUNDS):
                if await copy.copy_new() <= self._settings.max_lag:
                    break
            async with self.hold_sends(topic, checks):
                # Once the last sends are answered the target does not grow, and one more round copies everything.
                await self.repeat_until_ok(checks, lambda: self.checks.check_sends_answered(topic))
                await copy.copy_new()
                await self.repeat_until_ok(checks, lambda: self.checks.check_copied_back(topic, copy))
                if move.is_read_only:
                    # Sends continue at the primary, so the namesrv must show the topic as writable before they do.
                    checks.append(await self._give_back(move))
                    brokers = move.taken_permissions
                    await self.repeat_until_ok(
                        checks, lambda: self._write_permission.check_route(topic, brokers)
                    )
                ends = await self.checks.queue_ends(topic)
                checks.append(MoveCheck("offsets", True, *self.checks.compare_ends(ends)))
                done = await self._complete_step(step, move.with_ends(ends).with_taken_permissions({}))
        return done

    def _pause_bypass_watch(self, topic: str, copy: CopyBack) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a block in which copies are sent to the primary; they do not count as sent past the gateway."""
        if self._bypass is None:
            return contextlib.nullcontext()
        return self._bypass.pause_while_copying(topic, lambda: copy.stored_offsets)

    # -- groups ----------------------------------------------------------------------------------------------------

    async def _switch_group(self, step: MoveStep, checks: list[MoveCheck], allowed: set[str]) -> bool:
        """Switch a group to the other side: it has drained its own, and finds its offsets and locks on the other."""
        move, group = self.move_file.get_move(step.topic), step.group or ""
        # DRAINED changes nothing on either side, so there is nothing to undo but the state.
        if step.source is MoveState.DRAINED and step.is_backward:
            return await self._complete_step(step)
        if not step.is_backward:
            checks += excuse_allowed(await self._check_bypass(move), allowed)
        # The checks of DRAINED again: the group may have got messages since, from retries for instance.
        drained = await self.checks.check_drained(move, group)
        checks += excuse_allowed(drained, allowed & {ABANDONED_RETRIES_CHECK})
        if not step.is_backward:
            checks += excuse_allowed(
                [await self.checks.check_other_topics(move, group, self._moves_by_topic())], allowed
            )
        if not all_hold(checks):
            return False
        goal = Side.PRIMARY if step.is_backward else Side.TARGET
        started_s = trio.current_time()
        checks += excuse_allowed([await self._dead_letters.copy_missing(move, group, goal)], allowed)
        if all_hold(checks) and trio.current_time() - started_s > MAX_CHECK_AGE_S:
            drained = await self.checks.check_drained(move, group)
            checks += excuse_allowed(drained, allowed & {ABANDONED_RETRIES_CHECK})
        if not all_hold(checks):
            return False
        # Before the step is recorded: the group's first request on the other side must find its offsets there.
        checks += await self._group_transfer.transfer_group(move, group)
        if not all_hold(checks):
            return False
        if step.is_backward:
            if self.checks.clusters.preserves_offsets:
                checks.append(await self.checks.compare_retry_topics(move, group, self._moves_by_topic()))
            return await self._return_group(step, checks)
        if not self._dead_letters.are_replicated:
            move = move.with_dead_letter_ends(group, await self._dead_letters.queue_ends(move, group))
        return await self._complete_step(step, move)

    async def _return_group(self, step: MoveStep, checks: list[MoveCheck]) -> bool:
        """Switch a group back; with the last group the topic is mirrored again.

        Mirroring starts only when no read waits at the target, because such a read would deliver the mirrored message.
        """
        move = await self._record_step(step)
        try:
            if move.is_mirrored:
                await self.repeat_until_ok(checks, lambda: self.checks.check_no_waiting_reads(step.topic))
        finally:
            self._apply_mirroring(move)
        return True


def all_hold(checks: Iterable[MoveCheck]) -> bool:
    """Tell whether all checks hold."""
    return all(check.ok for check in checks)


def excuse_allowed(checks: Iterable[MoveCheck], allowed: Collection[str]) -> list[MoveCheck]:
    """Return the checks, with those that were allowed to fail marked as holding."""
    return [
        replace(check, ok=True, reason=f"allowed: {check.reason}")
        if not check.ok and check.name in allowed
        else check
        for check in checks
    ]


PERMISSION_CHECK: Final = "read-only"
ROUTES_CHECK: Final = "routes"


@dataclass(frozen=True, slots=True)
class WritePermission:
    """Changes the permission of topics at the primary, so that producers that bypass the gateway get errors.

    A broker does not look at a topic's permission when it stores a message: clients do, in the route. Without the
    write permission a producer finds no queue to send to, at the latest when it reads its routes again (every 30 s for
    stock clients), and its sends fail instead of being stored where nobody reads them. Everything else works as before:
    consumers read, and the gateway copies messages back in a roll-back.

    Clients of the gateway read the same topic routes. The director lets the proxy show the topic as writable to them,
    from the moment the taken permissions are in the move file. So `Mover` writes the file first and then changes the
    topic, and in the reverse order when the permission is given back. A crash in between leaves a topic that is
    writable at the primary although the file calls it read-only; repeating `take` or `give_back` mends that.
    """

    clusters: ClusterPair

    async def find_writable(self, topic: str) -> Mapping[str, TopicConfig]:
        """Return the topic at each broker of the primary where clients may write it. Raises LOOKUP_ERRORS."""
        configs = {}
        for broker in await self.clusters.brokers_of(topic):
            config = await find_topic(self.clusters.primary, broker, topic)
            if config is not None and config.perm & PERM_WRITE:
                configs[broker] = config
        return configs

    async def take(self, configs: Mapping[str, TopicConfig]) -> None:
        """Take the write permission of what `find_writable` returned. Raises LOOKUP_ERRORS."""
        for broker, config in configs.items():
            await self._set_permission(broker, config, config.perm & ~PERM_WRITE)

    async def give_back(self, topic: str, taken_permissions: Mapping[str, int]) -> MoveCheck:
        """Give the write permission back at every broker that still has the topic, and return that as a check.

        A broker that has left the primary is named: its topic stays read-only. Raises LOOKUP_ERRORS.
        """
        present = set(await self.clusters.brokers_of(topic))
        for broker in sorted(present & taken_permissions.keys()):
            config = await find_topic(self.clusters.primary, broker, topic)
            if config is not None and not config.perm & PERM_WRITE:
                await self._set_permission(
                    broker, config, config.perm | taken_permissions[broker] & PERM_WRITE
                )
        missing_brokers = sorted(taken_permissions.keys() - present)
        reason = (
            f"{', '.join(missing_brokers)} does not have the topic any more; it may still be read-only there"
        )
        return MoveCheck(
            PERMISSION_CHECK, True, "write permission given back", reason if missing_brokers else ""
        )

    async def check_route(self, topic: str, brokers: Iterable[str]) -> MoveCheck:
        """Check that the primary's namesrv tells clients again that they may write to these brokers."""
        try:
            queues = (await self.clusters.primary.route(topic)).queue_datas
        except LOOKUP_ERRORS as problem:
            return MoveCheck(ROUTES_CHECK, False, "unknown", f"{type(problem).__name__}: {problem}")
        waiting = {queue_data.broker_name for queue_data in queues if not queue_data.perm & PERM_WRITE} & set(
            brokers
        )
        reason = f"the primary's namesrv still shows the topic as read-only at {', '.join(sorted(waiting))}"
        return MoveCheck(ROUTES_CHECK, not waiting, "writable at the namesrv", reason if waiting else "")

    async def _set_permission(self, broker: str, config: TopicConfig, permission: int) -> None:
        changed = copy(config)
        changed.perm = permission
        await self.clusters.primary.ask_broker(broker, topic_request(changed, config.attributes))
