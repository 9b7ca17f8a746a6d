"""Each file of a store is removed, emptied, cut and filled with garbage: the broker serves, or names the file.

If it serves, everything that was acknowledged is readable, no queue offset is given out twice, and the log has one line
about it. Only of a damaged commit log file messages are lost, and reported.
"""

import logging
import random
from functools import cache

import pytest

from codec.message import decode_message
from gateway.broker.assembly.build import BrokerBuilder
from gateway.tests.cluster import SMALL, SimClock, inline
from gateway.tests.configs import broker_config
from storage.append import NewMessage
from storage.crash_files import CrashFiles, CrashMapping
from storage.errors import StoreError

COUNTS = {("orders", 0): 30, ("orders", 1): 5, ("bills", 0): 12}
SETTINGS = {**SMALL, "mapped_file_size_commit_log_bytes": 8192, "mapped_file_size_consume_queue_bytes": 200}
SETTINGS["max_message_size_bytes"] = 2000
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
WAYS = ("removed", "emptied", "zeros", "cut", "garbage")
IGNORED = ("store was not closed cleanly, recovering",)


def start(files):
    config = broker_config(store_path_root_dir="/b", **SETTINGS)
    return BrokerBuilder(
        memory=False, clock=SimClock(), run_blocking=inline, port=lambda: 10911, files=files
    ).build(config)


def close(broker):
    for table in (
        broker.topics,
        broker.groups,
        broker.offsets,
        broker.delay_service,
        broker.consumer_filters,
    ):
        table.persist()
    if broker.timer_delivery is not None:
        broker.timer_delivery.close()
    broker.store.close()


@cache
def used_files():
    """Return the files of a broker that was used, stopped, and used again, so that tables have backups."""
    files = CrashFiles()
    for turn in range(2):
        broker = start(files)
        for topic in ("orders", "bills"):
            broker.topics.create_for_send_back(topic, 2 + turn)
        broker.groups.find_or_create(f"GID{turn}")
        for number in range(30):
            for (topic, queue_id), count in COUNTS.items():
                if count * turn // 2 <= number < count * (turn + 1) // 2:
                    broker.writer.write(
                        NewMessage(topic, queue_id, b"%d" % number + bytes(200), {"KEYS": "k"})
                    )
        broker.writer.write(NewMessage("orders", 0, b"late", {"DELAY": "5"}))
        broker.offsets.commit_offset("GID0", "orders", 0, 3 + turn)
        close(broker)
    return files


def copied():
    return used_files().crash(random.Random(0), lose_unflushed=False)


def change(files, path, way):
    """Damage one file. In memory an emptied mapped file is one of zeros, as it is after it was opened on a disk."""
    if way == "removed":
        files.delete(path)
    elif path in files.small:
        content = files.small[path]
        garbage = random.Random(path).randbytes(max(40, len(content)))
        files.small[path] = {
            "emptied": b"", "zeros": bytes(len(content)), "cut": content[: len(content) // 2], "garbage": garbage,
        }[way]  # fmt: skip
    else:
        size = files.mapped[path].size_bytes
        content = random.Random(path).randbytes(size) if way == "garbage" else bytes(size)
        content = bytes(size // 2) if way == "cut" else content
        files.mapped[path] = CrashMapping(files, path, content, content)


def check_messages(broker, *, some_lost=False):
    for (topic, queue_id), count in COUNTS.items():
        for offset in range(count):
            chunks = broker.store.read(topic, queue_id, offset, 1).chunks
            assert chunks or some_lost, f"{topic}/{queue_id} lacks offset {offset}"
            if chunks:
                body = decode_message(chunks[0]).body
                assert body.rstrip(b"\0").isdigit()
                assert some_lost or body == b"%d" % offset + bytes(200)
        appended = broker.writer.write(NewMessage(topic, queue_id, b"next", {}))
        assert appended[0] == count
        assert topic in broker.topics


def try_start(files, name):
    """Return the broker, None if it refuses to start and its one line says why."""
    try:
        return start(files)
    except (StoreError, ValueError, OSError) as error:
        text = str(error)
    assert name in text
    assert "\n" not in text
    return None


def lines(caplog):
    return [
        f"{record.message} {getattr(record, 'path', '')} {getattr(record, 'reason', '')}"
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.message not in IGNORED
    ]


PATHS = sorted([*used_files().mapped, *used_files().small])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_is_damaged(path, way, caplog):
    files = copied()
    change(files, path, way)
    broker = try_start(files, path.rpartition("/")[0])
    if broker is None:
        return
    told = lines(caplog)
    of_log = "/commitlog/" in path
    check_messages(broker, some_lost=of_log)
    assert broker.offsets.query_offset("GID0", "orders", 0) in (3, 4)
    assert "GID0" in broker.groups
    # Garbage in a queue file is met several times, until the entries are derived from the log.
    most = 3 if "/consumequeue/" in path and way == "garbage" else 1
    assert told if of_log else len(told) <= most, told


QUEUES = ("/b/consumequeue/orders", "/b/consumequeue/orders/0", "/b/consumequeue/bills")
FOLDERS = [*sorted({path[: path.index("/", len("/b/x"))] for path in PATHS if path.count("/") > 2}), *QUEUES]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_that_is_removed(folder, caplog):
    files = copied()
    files.delete_tree(folder)
    broker = try_start(files, folder)
    if broker is None:
        return
    told = lines(caplog)
    check_messages(broker)
    assert told or folder == "/b/index"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("way", ["removed", "emptied", "garbage"])
def test_a_table_without_backup(name, way, caplog):
    files = copied()
    files.delete(f"/b/config/{name}.bak")
    change(files, f"/b/config/{name}", way)
    if way != "removed":
        with pytest.raises(
            ValueError, match=rf"/b/config/{name} cannot be read: .* Restore it from a copy, or delete it"
        ):
            start(files)
        return
    broker = start(files)
    (line,) = lines(caplog)
    assert line.startswith(f"table is missing, beginning with an empty one /b/config/{name}")
    check_messages(broker)
    close(broker)
    assert f"/b/config/{name}" in files.small, "written, so that the next start does not complain"


def test_a_new_store_and_a_stopped_one_start_without_a_warning(caplog):
    files = copied()
    assert start(CrashFiles())
    broker = start(files)
    assert lines(caplog) == []
    assert broker.offsets.query_offset("GID0", "orders", 0) == 4
