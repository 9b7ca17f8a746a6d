"""Stories about half messages, through kills and power cuts.

The laws: an acknowledged half message is ended, asked about or given up; what its producer committed is in its topic
once, what it rolled back is not; nothing appears that was not sent.
"""

from collections import Counter
from dataclasses import dataclass

import pytest

from codec.topics import TRANS_CHECK_MAX_TOPIC
from gateway.tests.crash_story import STORY_RANGES, CrashStory
from gateway.tests.transacting import COMMIT, ROLLBACK, half_message
from remoting.requests.transaction import CheckTransactionState, EndTransaction

STEPS = 30
CHECK_INTERVAL_MS = 30_000
MAX_CHECKS = 200


@dataclass(slots=True)
class Half:
    """A half message as its producer knows it."""

    key: str
    decision: int
    queue_offset: int
    physical_offset: int
    end: int
    was_ended: bool = False  # the producer has decided: it does so again only when it is asked
    is_decided: bool = False  # since the broker started; a second decision commits again, as officially


class TransactionStory(CrashStory):
    """A producer that decides without being asked, or when it is asked, and again when it is asked after a crash."""

    def __init__(self, seed: int) -> None:
        self.halves: dict[str, Half] = {}
        super().__init__(
            seed, timer_wheel_enable=False, transaction_check_max=MAX_CHECKS, transaction_timeout_ms=6000
        )
        self.world.topic()
        self.log_in()

    def log_in(self) -> None:
        self.world.beat(self.connection, group=None, producers=["p"])

    def run(self) -> None:
        self.run_steps(
            [
                self.send_half, self.send_half, self.end_half, self.end_half, self.write_ops, self.check,
                self.check, self.answer_questions, self.flush, self.write_checkpoint, self.persist_offsets,
                self.write_back, self.kill, self.lose_power,
            ],
            STEPS,
        )  # fmt: skip
        self.finish()

    # -- what a producer and a broker do --

    def send_half(self) -> None:
        key = f"U{len(self.halves)}"
        reply = self.world.ask(half_message(key, self.clock.now_ms(), key.encode()))
        decision = self.randomness.choice([COMMIT, ROLLBACK])
        end = self.world.broker.store.max_physical_offset
        self.halves[key] = Half(key, decision, reply.queue_offset, int(reply.msg_id[-16:], 16), end)

    def end_half(self) -> None:
        """Send the decision about a message without being asked."""
        open_halves = [half for half in self.halves.values() if not half.was_ended]
        if open_halves:
            half = self.randomness.choice(open_halves)
            self.decide(half, half.queue_offset, half.physical_offset, False)

    def decide(self, half: Half, queue_offset: int, physical_offset: int, is_asked: bool) -> None:
        half.is_decided = half.was_ended = True
        request = EndTransaction(
            producer_group="p",
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=half.decision,
            from_transaction_check=is_asked,
            msg_id=half.key,
        )
        self.world.ask(request)

    def check(self) -> None:
        self.clock.pass_ms(CHECK_INTERVAL_MS)
        self.world.broker.store.build_index(1000)  # a task of the broker does so all the time
        for _ in self.world.broker.transaction_checks.run_round():
            pass

    def answer_questions(self) -> None:
        questions, self.connection.told = self.connection.told, []
        for question in questions:
            assert isinstance(question, CheckTransactionState)
            half = self.halves[question.msg_id or ""]
            if not half.is_decided or half.decision == ROLLBACK:
                self.decide(half, question.tran_state_table_offset, question.commit_log_offset, True)

    def write_ops(self) -> None:
        self.world.broker.transactions.op_messages.flush()

    # -- what must be true --

    def check_recovered(self, lost_power: bool) -> None:
        """Forget half messages that a power cut took; the producer does not know, and neither must anybody else."""
        self.halves = {key: half for key, half in self.halves.items() if self.is_stored(half.end)}
        for half in self.halves.values():
            half.is_decided = False
        self.log_in()
        self.check_nothing_wrong()

    def check_nothing_wrong(self) -> Counter[str]:
        found = Counter(message.body.decode() for message in self.world.stored("t"))
        assert not found or max(found.values()) == 1
        assert all(self.halves[key].decision == COMMIT for key in found)
        return found

    def finish(self) -> None:
        """Let the producer answer all questions, until none is left."""
        for _ in range(4):
            self.check()
            self.answer_questions()
        self.check()
        assert not self.connection.told
        found = self.check_nothing_wrong()
        given_up = {message.body.decode() for message in self.world.stored(TRANS_CHECK_MAX_TOPIC)}
        assert not given_up
        assert found.keys() == {key for key, half in self.halves.items() if half.decision == COMMIT}


@pytest.mark.parametrize("seeds", STORY_RANGES, ids=str)
def test_half_messages_survive_what_happens_to_a_broker(seeds: range) -> None:
    for seed in seeds:
        TransactionStory(seed).run()
