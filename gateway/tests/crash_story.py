"""A broker on files that a story crashes again and again, while it notes what must be true."""

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.tests.broker_fakes import FakeClock, FakeConnection
from gateway.tests.broker_world import World
from gateway.tests.cluster import SMALL
from storage.crash_files import CrashFiles

STORIES: Final = int(os.environ.get("LAWS_SEEDS", "100"))
STORIES_PER_TEST: Final = 25
STORY_RANGES: Final = [
    range(first, min(first + STORIES_PER_TEST, STORIES)) for first in range(0, STORIES, STORIES_PER_TEST)
]
"""Seeds of the stories, in parts that run as tests of their own."""


class CrashStory:
    """One broker whose process is killed, and whose machine loses power, between any two steps of a story.

    A subclass names the steps and checks its law in `check_recovered`, which runs after each crash.
    """

    def __init__(self, seed: int, **settings: Any) -> None:
        self.randomness = random.Random(seed)
        self.settings: dict[str, Any] = {**SMALL, **settings}
        self.clock = FakeClock()
        self.world = self.build(CrashFiles())

    def build(self, files: CrashFiles) -> World:
        """Start a broker on the files, at the time at which the last one ended."""
        self.files = files
        return World(files, self.clock, **self.settings)

    @property
    def connection(self) -> FakeConnection:
        return self.world.connection

    def run_steps(self, steps: Sequence[Callable[[], object]], count: int) -> None:
        for _ in range(count):
            self.randomness.choice(steps)()

    # -- steps of every story ------------------------------------------------------------------------------

    def flush(self) -> None:
        self.world.broker.store.flush()

    def write_checkpoint(self) -> None:
        self.world.broker.store.write_checkpoint()

    def persist_offsets(self) -> None:
        self.world.broker.offsets.persist()

    def write_back(self) -> None:
        """Let the kernel write some sectors."""
        self.files.write_back(self.randomness)

    def kill(self) -> None:
        self.restart(lose_unflushed=False)

    def lose_power(self) -> None:
        self.restart(lose_unflushed=True)

    def restart(self, lose_unflushed: bool) -> None:
        store = self.world.broker.store
        kept = store.durable_offset if lose_unflushed else store.max_physical_offset
        self.world = self.build(self.files.crash(self.randomness, lose_unflushed=lose_unflushed))
        assert self.world.broker.store.max_physical_offset >= kept
        self.check_recovered(lose_unflushed)

    def check_recovered(self, lost_power: bool) -> None:
        """Note what a crash undid, and check the law of the story."""
        raise NotImplementedError

    def is_stored(self, end: int) -> bool:
        """Return True if the commit log still reaches up to the end of a message."""
        log_end: int = self.world.broker.store.max_physical_offset
        return end <= log_end
