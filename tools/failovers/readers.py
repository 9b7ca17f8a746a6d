"""Reads every broker of a group all the while: a message that was readable once stays where it is."""

import threading
import time
import zlib
from contextlib import suppress
from typing import Final

from codec.errors import MessageFormatError
from codec.message import iter_messages
from compat_tests.clients.typed import connect, pull
from remoting.blocking import BlockingClient
from remoting.errors import REQUEST_FAILURES
from tools.pairings.history import Position, QueueContents
from tools.pairings.members import QUEUES, TOPIC

POLL_S: Final = 0.2
TIMEOUT_S: Final = 3.0
OFFSET_MOVED: Final = 21


class ReadMessages:
    """Checksums of the messages that readers saw, by queue and offset; thread-safe.

    ``conflicts`` counts the offsets where two readers, or one at two times, saw two messages.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checksums: dict[Position, int] = {}
        self._conflicting: set[Position] = set()

    @property
    def conflicts(self) -> int:
        return len(self._conflicting)

    @property
    def count(self) -> int:
        return len(self._checksums)

    def note(self, queue_id: int, offset: int, body: bytes) -> None:
        position, checksum = (queue_id, offset), zlib.crc32(body)
        with self._lock:
            if self._checksums.setdefault(position, checksum) != checksum:
                self._conflicting.add(position)

    def count_vanished(self, queues: QueueContents) -> int:
        """Return the number of messages that were read, and are not where they were; forget those."""
        contents = {
            (queue_id, offset): zlib.crc32(body)
            for queue_id, messages in queues.items()
            for offset, body in messages
        }
        with self._lock:
            vanished = [at for at, value in self._checksums.items() if contents.get(at) != value]
            for position in vanished:
                del self._checksums[position]
        return len(vanished)


class BrokerReader:
    """A thread that pulls what one broker serves, from the begin of each queue on."""

    def __init__(self, address: str, messages: ReadMessages) -> None:
        self._address, self._messages = address, messages
        self._offsets = dict.fromkeys(range(QUEUES), 0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        while not self._is_over.is_set():
            with (
                suppress(MessageFormatError, *REQUEST_FAILURES),
                connect(self._address, timeout_s=TIMEOUT_S) as broker,
            ):
                while not self._is_over.is_set():
                    for queue_id in self._offsets:
                        self._read_queue(broker, queue_id)
                    time.sleep(POLL_S)
            time.sleep(POLL_S)

    def _read_queue(self, broker: BlockingClient, queue_id: int) -> None:
        reply = pull(
            broker, TOPIC, self._offsets[queue_id], queue_id=queue_id, consumer_group="PairingWatcher"
        )
        if reply.code == 0:
            for message in iter_messages(reply.body):
                self._messages.note(queue_id, message.queue_offset, bytes(message.body))
        if reply.code in (0, OFFSET_MOVED):
            self._offsets[queue_id] = reply.next_begin_offset
