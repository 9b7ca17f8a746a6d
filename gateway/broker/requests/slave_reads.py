"""Which replica a consumer pulls from next, and what a slave answers to pulls.

An answer names a broker id to which the client sends the next pull of the queue: 0 is the master. With
``slaveReadEnable``, a group whose next messages are no longer in memory (more than ``accessMessageInMemoryMaxRatio``
percent of it behind the end of the log) is sent to the slave that it names in ``whichBrokerWhenConsumeSlowly``, any
other to the broker in its ``brokerId``. A slave sends consumers that have caught up back to the master: its last
messages are not here yet.

While a slave has lost its master, it serves everything itself, with long polls. Deviations from the official slave:

- It serves pulls then even without ``slaveReadEnable``, so that the backlog of a dead master can be read.
- It suggests itself. The official slave sends the client to the master, which is not there, with an answer that makes
  the client pull again at once: it does so thousands of times per second.
- A pull beyond the end of a queue waits, because what lies there was on the master only. A pull before its beginning is
  moved to the beginning. The official slave makes the client pull again at once in both cases. With
  ``offsetCheckInSlave`` it moves both, as this one does.

Source: PullMessageProcessor.rejectRequest and composeResponseHeader, DefaultPullMessageResultHandler,
DefaultMessageStore.nextOffsetCorrection, 5.4.0.
"""

from collections.abc import Callable

from codec.constants import MASTER_ID, ResponseCode
from gateway.broker.limits.flow_control import START_TEXT, busy_refusal
from gateway.config.process import BrokerConfig
from gateway.config.replication import Role
from remoting.bodies.groups import SubscriptionGroupConfig
from storage.queue_read import ReadResult, ReadStatus


class SlaveReads:
    """The rules of one broker. ``follows_master`` tells whether a slave is connected to its master."""

    def __init__(self, config: BrokerConfig, follows_master: Callable[[], bool]) -> None:
        self._is_slave = config.role is Role.SLAVE
        self._broker_id = config.broker_id
        self._is_enabled = config.replication.slave_read_enable
        self._checks_offsets = config.replication.offset_check_in_slave
        self._follows_master = follows_master

    def check_readable(self) -> None:
        """Refuse a pull at a slave that does not serve any. Raises RequestError."""
        if self._is_slave and not self._is_enabled and self._follows_master():
            raise busy_refusal(f"[REJECTREQUEST]system busy, {START_TEXT}")

    def suggest_broker(self, group: SubscriptionGroupConfig, *, is_behind: bool = False) -> int:
        """Return the id of the broker from which the group pulls next."""
        if self._is_slave:
            if not self._follows_master():
                return self._broker_id
            if not is_behind:
                return MASTER_ID
        if not self._is_enabled:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if is_behind else group.broker_id

    def adjust_code(self, code: int, result: ReadResult, offset: int) -> int:
        """Return the code of an answer without messages. A slave may leave the client's offset as it is."""
        if not self._is_slave:
            return code
        follows_master = self._follows_master()
        # Only the master knows what an offset should be that this queue does not have, unless it has expired.
        is_kept = follows_master or result.status is not ReadStatus.OFFSET_TOO_SMALL
        if code == ResponseCode.PULL_OFFSET_MOVED and is_kept and not self._checks_offsets:
            result.next_offset = offset
            code = ResponseCode.PULL_NOT_FOUND
        return ResponseCode.PULL_RETRY_IMMEDIATELY if follows_master else code
