"""Assigns a topic's queues to the members of a group, with the strategies that clients otherwise apply themselves.

`RequestModes` holds whether a group is to pull or to pop a topic, in messageRequestMode.json.
Source: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle and QueryAssignmentProcessor, 5.4.0.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from codec.java_numbers import quoted
from gateway.broker.topics.limit_errors import limit_error
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ConfigFile, SettingsTable, replace_entry
from gateway.runtime.saved_tables import load_table, parse_entries
from remoting.bodies.pop import MessageRequestModeSerializeWrapper, SetMessageRequestModeRequestBody
from remoting.bodies.queues import MessageQueue

ALL_QUEUES: Final = -1
Queues = Sequence[MessageQueue]
Strategy = Callable[[int, int, Queues], list[MessageQueue]]
"""Takes the rank of a client among the members by client id, the number of members, and the queues."""


def assign_averagely(rank: int, members: int, queues: Queues) -> list[MessageQueue]:
    """Return the client's run of neighbouring queues. If the division leaves a rest, the first members get one more."""
    share, more = divmod(len(queues), members)
    start = rank * share + min(rank, more)
    return list(queues[start : start + share + (rank < more)])


def assign_by_circle(rank: int, members: int, queues: Queues) -> list[MessageQueue]:
    """Return every n-th queue, n being the number of members."""
    return list(queues[rank::members])


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": assign_averagely, "AVG_BY_CIRCLE": assign_by_circle}


def assign_queues(
    strategy: Strategy, client: str, queues: Queues, clients: Sequence[str]
) -> list[MessageQueue]:
    """Return the queues that a client consumes alone; none for a client that is not a member."""
    rank = bisect_left(clients, client)
    if clients[rank : rank + 1] != [client]:
        return []
    return strategy(rank, len(clients), queues)


def assign_for_pop(
    strategy: Strategy, client: str, queues: Queues, clients: Sequence[str], shared_by: int
) -> list[MessageQueue]:
    """Return the queues that a client pops: its own and those of the next ``shared_by`` members.

    When all members share all queues, return one entry per broker with queue id -1, which stands for all queues.
    """
    members = len(clients)
    if shared_by <= 0 or shared_by >= members - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [
            MessageQueue(topic=topic, broker_name=broker, queue_id=ALL_QUEUES) for topic, broker in brokers
        ]
    rank = bisect_left(clients, client)
    if clients[rank : rank + 1] != [client]:
        return []
    if members > len(queues):
        return [queues[rank % len(queues)]]
    sharing = (strategy((rank + number) % members, members, queues) for number in range(shared_by + 1))
    return list(dict.fromkeys(queue for share in sharing for queue in share))


class RequestModes(SettingsTable):
    """Modes by topic and group. Source: MessageRequestModeManager, 5.4.0.

    ``limits`` are set again when the configuration changes.
    """

    def __init__(self, file: ConfigFile, limits: BrokerLimits) -> None:
        super().__init__(file)
        self.limits = limits
        self.table: dict[str, dict[str, SetMessageRequestModeRequestBody]] = file.load(parse_modes) or {}
        self._count = sum(map(len, self.table.values()))

    def set_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Set a mode, which `save_changes` writes. Raises RequestError at the limit of modes."""
        topic, group = mode.topic or "", mode.consumer_group or ""
        before = self.find_mode(topic, group)
        if before is None:
            if self._count >= self.limits.max_request_modes:
                raise limit_error("maxRequestModes", self.limits.max_request_modes, "request modes of groups")
            self._count += 1
        self.table.setdefault(topic, {})[group] = mode
        self.note_change(partial(self._undo_mode, topic, group, before))

    def _undo_mode(self, topic: str, group: str, before: SetMessageRequestModeRequestBody | None) -> None:
        replace_entry(self.table[topic], group, before)
        self._count -= before is None
        if not self.table[topic]:
            del self.table[topic]

    def adopt(self, modes: dict[str, dict[str, SetMessageRequestModeRequestBody]]) -> None:
        """Take over all modes of this broker's master."""
        if modes != self.table:
            self.table = modes
            self._count = sum(map(len, modes.values()))
            self.note_change()

    def find_mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """Return the mode that was set for a group and topic."""
        return self.table.get(topic, {}).get(group)

    def snapshot(self) -> MessageRequestModeSerializeWrapper:
        """Return the table as it goes to the file and other brokers, not copied."""
        return MessageRequestModeSerializeWrapper(message_request_mode_map=self.table)

    def to_json(self) -> bytes:
        """Return the content of messageRequestMode.json."""
        return self.snapshot().to_json()


def parse_modes(content: bytes) -> dict[str, dict[str, SetMessageRequestModeRequestBody]]:
    """Parse messageRequestMode.json, which is also what a master answers. Raises ValueError.

    A mode that cannot be read is left out.
    """
    return parse_entries(
        "messageRequestMode.json", load_table(content).get("messageRequestModeMap"), _parse_groups
    )


def _parse_groups(topic: object, value: object) -> tuple[str, dict[str, SetMessageRequestModeRequestBody]]:
    return str(topic), parse_entries(f"request modes of {quoted(str(topic))}", value, _parse_mode)


def _parse_mode(group: object, value: object) -> tuple[str, SetMessageRequestModeRequestBody]:
    return str(group), SetMessageRequestModeRequestBody.from_value(value)
