"""Stories about popped messages, through kills and power cuts.

The laws: a message that a crash leaves is acked or comes again; what was acked before a kill does not come again;
nothing appears that was not sent.
"""

import pytest

from gateway.tests.crash_story import STORY_RANGES, CrashStory
from gateway.tests.popping import Got, pop_request, popped_messages
from remoting.errors import RequestError
from remoting.requests.pop import AckMessage

STEPS = 30
INVISIBLE_MS = 10_000


class PopStory(CrashStory):
    """A consumer that pops a queue of one topic and acks some of what it gets, sometimes too late."""

    def __init__(self, seed: int) -> None:
        self.sent: dict[str, int] = {}  # the end of each message in the commit log
        self.acked: dict[str, int] = {}  # the end of the commit log after the ack
        self.out: list[Got] = []
        super().__init__(seed, timer_wheel_enable=False)
        self.world.topic(queues=1)
        self.world.beat(None, "t", group="g")
        self.world.broker.groups.find_or_create("g")
        self.world.broker.topics.persist()
        self.world.broker.groups.persist()

    def run(self) -> None:
        self.run_steps(
            [
                self.send, self.send, self.send, self.pop, self.pop, self.ack, self.ack, self.pass_time,
                self.save_offsets, self.flush, self.write_checkpoint, self.write_back, self.kill, self.lose_power,
            ],
            STEPS,
        )  # fmt: skip
        self.finish()

    def send(self) -> None:
        body = f"m{len(self.sent)}"
        self.world.put(body=body.encode())
        self.sent[body] = self.world.broker.store.max_physical_offset

    def pop(self) -> None:
        request = pop_request("t", "g", queue_id=0, invisible_time=INVISIBLE_MS, max_msg_nums=3)
        try:
            reply = self.world.ask(request)
        except RequestError:  # there is no message
            return
        popped = popped_messages(reply, "b1", "t", "g")
        for got in popped:
            assert got.body.decode() in self.sent
            assert got.body.decode() not in self.acked
        self.out += popped

    def ack(self) -> None:
        """Ack a message; an ack that comes after its time changes nothing."""
        if not self.out:
            return
        got = self.out.pop(self.randomness.randrange(len(self.out)))
        _, pop_time, invisible_ms, *_ = got.receipt.split(" ")
        self.world.ask(got.request(AckMessage, "g"))
        if self.clock.now_ms() < int(pop_time) + int(invisible_ms):
            self.acked[got.body.decode()] = self.world.broker.store.max_physical_offset

    def pass_time(self) -> None:
        self.clock.pass_ms(self.randomness.choice([1, 4000, INVISIBLE_MS]))
        self.world.broker.pop.run_due()

    def save_offsets(self) -> None:
        self.world.broker.pop.state.reviver.commit_offsets()
        self.persist_offsets()
        self.world.broker.pop.state.ordered_pops.persist()

    def check_recovered(self, lost_power: bool) -> None:
        """Forget lost messages, and acks whose record is lost: these messages come again."""
        self.sent = {body: end for body, end in self.sent.items() if self.is_stored(end)}
        self.acked = {body: end for body, end in self.acked.items() if self.is_stored(end)}
        if lost_power:
            self.out = []  # their pops may be lost as well
        self.world.beat(None, "t", group="g")

    def finish(self) -> None:
        """Ack everything that comes within its time, until nothing does."""
        self.out = []
        for _ in range(4):
            self.clock.pass_ms(INVISIBLE_MS + 1)
            for _ in range(2 + len(self.sent)):
                self.world.broker.pop.run_due()
                self.pop()
                while self.out:
                    self.ack()
        assert self.acked.keys() == self.sent.keys()


@pytest.mark.parametrize("seeds", STORY_RANGES, ids=str)
def test_popped_messages_survive_what_happens_to_a_broker(seeds: range) -> None:
    for seed in seeds:
        PopStory(seed).run()
