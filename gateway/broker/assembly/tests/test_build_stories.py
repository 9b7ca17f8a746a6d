"""Stories about a broker's tables: topics, groups and offsets, through kills, power cuts and lost files.

The laws: a table is the newest one, or one that was on the disk when the power was cut; without its file, or with an
empty one, the broker takes the ``.bak``; every topic with messages exists; no group is ahead of its queue.
"""

import os
import random
from collections.abc import Callable, Iterable

import pytest
import trio

from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.broker import Broker
from gateway.runtime.config_file import SettingsTable
from gateway.tests.broker_fakes import FakeClock, run_inline
from gateway.tests.cluster import SMALL
from gateway.tests.configs import broker_config
from storage.append import NewMessage
from storage.crash_files import CrashFiles

STORIES = int(os.environ.get("LAWS_SEEDS", "100"))
STEPS = 25
CONFIG = "/b/config"
TOPICS = [f"topic-{number}" for number in range(6)]
GROUPS = [f"group-{number}" for number in range(6)]
Names = frozenset[str]
Offsets = dict[tuple[str, str], int]


class SavedNames:
    """Contents of a table of names: the newest, those that a power cut may leave, those that a backup may hold."""

    def __init__(self, newest: Names, earlier: Iterable[Names] = ()) -> None:
        self.newest = newest
        self.possible = {newest}
        self.earlier = {newest, *earlier}

    def note_saved(self, table: SettingsTable, newest: Names) -> None:
        if table.file.unflushed_mark() is None:
            self.possible.clear()
        self.newest = newest
        self.possible.add(newest)
        self.earlier.add(newest)

    def note_settled(self) -> None:
        self.possible = {self.newest}


class Story:
    """A broker on files that can be crashed, and what its tables must hold."""

    def __init__(self, seed: int) -> None:
        self.randomness = random.Random(seed)
        self.files = CrashFiles()
        self.clock = FakeClock()
        self.broker = self.build()
        self.sent: dict[str, int] = {}
        self.offsets_saved: Offsets = {}
        self.offsets_backup: Offsets = {}
        self.broker.topics.persist()
        self.broker.groups.persist()
        self.topics = SavedNames(self.topic_names())
        self.groups = SavedNames(self.group_names())

    def build(self) -> Broker:
        config = broker_config(store_path_root_dir="/b", **SMALL)
        return BrokerBuilder(
            memory=False,
            clock=self.clock,
            run_blocking=run_inline,
            port=lambda: 10911,
            files=self.files,
        ).build(config)

    def topic_names(self) -> Names:
        return frozenset(name for name in TOPICS if name in self.broker.topics)

    def group_names(self) -> Names:
        return frozenset(name for name in GROUPS if name in self.broker.groups)

    def offsets(self) -> Offsets:
        found = {}
        for topic in TOPICS:
            for group in GROUPS:
                if (offset := self.broker.offsets.query_offset(group, topic, 0)) >= 0:
                    found[topic, group] = offset
        return found

    # -- what a broker does --

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            self.create_topic, self.create_group, self.send, self.send, self.commit, self.commit,
            self.save_offsets, self.save_names, self.settle, self.flush, self.write_checkpoint,
            self.kill, self.lose_power, self.lose_a_file,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.randomness.choice(steps)()
            self.clock.pass_ms(self.randomness.choice([0, 1, 5000]))

    def create_topic(self) -> None:
        self.broker.topics.create_for_send_back(self.randomness.choice(TOPICS), 1)

    def create_group(self) -> None:
        self.broker.groups.find_or_create(self.randomness.choice(GROUPS))

    def send(self) -> None:
        topic = self.randomness.choice(TOPICS)
        self.broker.topics.create_for_send_back(topic, 1)
        offset = self.broker.store.append(NewMessage(topic, 0, b"body", b""))[0]
        assert offset == self.sent.get(topic, 0)
        assert all(
            committed <= offset for (of_topic, _), committed in self.offsets().items() if of_topic == topic
        )
        self.sent[topic] = offset + 1

    def commit(self) -> None:
        topic, group = self.randomness.choice(TOPICS), self.randomness.choice(GROUPS)
        end = self.broker.store.max_offset(topic, 0)
        self.broker.offsets.commit_offset(group, topic, 0, self.randomness.randint(0, end))

    def save_offsets(self) -> None:
        if self.broker.offsets.is_dirty:
            self.broker.offsets.persist()
            self.offsets_backup, self.offsets_saved = self.offsets_saved, self.offsets()

    def save_names(self) -> None:
        """Write the tables of names as the broker's task does, or as an administrator's request does."""
        for table, saved, names in self.name_tables():
            if not table.is_dirty:
                continue
            if self.randomness.random() < 0.3:
                table.persist()
                saved.note_saved(table, names())
                saved.note_settled()
            else:
                trio.run(table.save_changes)
                saved.note_saved(table, names())

    def settle(self) -> None:
        for table, saved, _ in self.name_tables():
            trio.run(table.settle)
            saved.note_settled()

    def name_tables(self) -> list[tuple[SettingsTable, SavedNames, Callable[[], Names]]]:
        return [
            (self.broker.topics, self.topics, self.topic_names),
            (self.broker.groups, self.groups, self.group_names),
        ]

    def flush(self) -> None:
        self.broker.store.flush()

    def write_checkpoint(self) -> None:
        self.broker.store.write_checkpoint()

    # -- what happens to it --

    def kill(self) -> None:
        self.files = self.files.crash(self.randomness, lose_unflushed=False)
        self.recover({self.topics.newest}, {self.groups.newest}, self.offsets_saved)

    def lose_power(self) -> None:
        self.files = self.files.crash(self.randomness)
        self.recover(self.topics.possible, self.groups.possible, self.offsets_saved)

    def lose_a_file(self) -> None:
        """Kill the process, and remove or empty a table that has a backup, for good."""
        self.files = self.files.crash(self.randomness, lose_unflushed=False)
        topics, groups, offsets = {self.topics.newest}, {self.groups.newest}, self.offsets_saved
        name = self.randomness.choice(["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
        path = f"{CONFIG}/{name}"
        if f"{path}.bak" in self.files.small:
            if self.randomness.random() < 0.5:
                self.files.delete(path)
            else:
                self.files.small[path] = b""
            self.files.settle()
            if name == "topics.json":
                topics = self.topics.earlier
            elif name == "subscriptionGroup.json":
                groups = self.groups.earlier
            else:
                offsets = self.offsets_backup
        self.recover(topics, groups, offsets)

    def recover(self, topics: set[Names], groups: set[Names], offsets: Offsets) -> None:
        self.broker = self.build()
        store = self.broker.store
        for topic in TOPICS:
            assert store.max_offset(topic, 0) <= self.sent.get(topic, 0)
            self.sent[topic] = store.max_offset(topic, 0)
        with_messages = {topic for topic, end in self.sent.items() if end}
        assert self.topic_names() in {names | with_messages for names in topics}
        assert self.group_names() in groups
        expected = {key: min(offset, self.sent[key[0]]) for key, offset in offsets.items()}
        assert self.offsets() == expected
        # From here on the content of the files is known again.
        self.broker.topics.persist()
        self.broker.groups.persist()
        self.broker.offsets.commit_offset(GROUPS[0], TOPICS[0], 0, 0)
        self.broker.offsets.persist()
        self.offsets_backup, self.offsets_saved = expected, self.offsets()
        self.topics = SavedNames(self.topic_names(), self.topics.earlier)
        self.groups = SavedNames(self.group_names(), self.groups.earlier)


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, STORIES, 50)], ids=str)
def test_the_tables_of_a_broker_survive_what_happens_to_it(seeds: range) -> None:
    for seed in seeds:
        Story(seed).run()
