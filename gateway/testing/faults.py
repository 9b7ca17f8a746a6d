"""Faults to inject: which requests they concern, and how often.

`FaultTable.find` decides, `connection.py` carries the faults out.
"""

import random
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import count
from typing import Any, Final

from codec.command import Command
from codec.constants import ResponseCode
from gateway.broker.limits.flow_control import long_wait_remark
from remoting.requests.client import HeartBeat
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.pop import AckMessage, BatchAckMessage, ChangeMessageInvisibletime, PopMessage
from remoting.requests.pull import LitePullMessage, PullMessage
from remoting.requests.send import ConsumerSendMsgBack, SendBatchMessage, SendMessage, SendMessageV2
from remoting.requests.transaction import EndTransaction

REQUESTS: Final[Mapping[str, frozenset[int]]] = {
    "send": frozenset({SendMessage.code, SendMessageV2.code, SendBatchMessage.code}),
    "send-back": frozenset({ConsumerSendMsgBack.code}),
    "end-transaction": frozenset({EndTransaction.code}),
    "pull": frozenset({PullMessage.code, LitePullMessage.code}),
    "pop": frozenset({PopMessage.code}),
    "ack": frozenset({AckMessage.code, BatchAckMessage.code}),
    "change-invisible-time": frozenset({ChangeMessageInvisibletime.code}),
    "commit-offset": frozenset({UpdateConsumerOffset.code}),
    "query-offset": frozenset({QueryConsumerOffset.code}),
    "heartbeat": frozenset({HeartBeat.code}),
    "route": frozenset({GetRouteInfoByTopic.code}),
}
"""Request codes by the names that faults may use for them. A number stands for any other request code."""
_V2: Final = frozenset({SendMessageV2.code, SendBatchMessage.code})
FLOW_CONTROL_REMARK: Final = long_wait_remark(waited_ms=201, queue_size=0)


class FaultAction(StrEnum):
    """The kinds of faults."""

    LATENCY = "latency"
    """The request is handled ``seconds`` later."""
    ERROR = "error"
    """The request is not handled; the answer has ``code`` and ``remark``."""
    FLOW_CONTROL = "flow-control"
    """The request is refused as by an overloaded broker, so that producers try another one."""
    DROP_ANSWER = "drop-answer"
    """The request is handled, but never answered."""
    CLOSE = "close"
    """The connection is closed, and the request is not handled."""
    CLOSE_BEFORE_ANSWER = "close-before-answer"
    """The request is handled, and the connection is closed instead of the answer."""
    HALF_ANSWER = "half-answer"
    """The request is handled; half of the answer's bytes are sent, then the connection is closed."""
    DUPLICATE = "duplicate"
    """The request is handled twice and answered once, as when a client repeats a request whose answer got lost."""
    ROUTE = "route"
    """The route of a topic is answered with changes: ``queues``, ``permission``, ``address``, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """One fault: the action, the requests it concerns (all conditions must hold), and its parameters.

    Without ``request`` it concerns every request to a broker, but no query of a route. ``client`` is a client id, known
    from its first heartbeat on, or the address of its side of the connection, with or without port.
    """

    action: FaultAction
    request: str | int | None = None
    topic: str | None = None
    group: str | None = None
    client: str | None = None
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    seconds: float = 0.0
    code: int = ResponseCode.SYSTEM_ERROR
    remark: str = "injected fault"
    queues: int | None = None
    permission: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.request, str) and self.request not in REQUESTS:
            raise ValueError(
                f"request: {self.request!r} is none of {', '.join(REQUESTS)}, and no request code"
            )
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability: {self.probability} is not above 0 and at most 1")
        if self.times is not None and self.times < 1:
            raise ValueError(f"times: {self.times} is less than 1")
        if self.seconds < 0:
            raise ValueError(f"seconds: {self.seconds} is negative")
        if self.action is FaultAction.LATENCY and not self.seconds:
            raise ValueError("seconds: a latency needs the number of seconds")

    @classmethod
    def parse(cls, action: str, options: Mapping[str, Any]) -> "FaultSpec":
        """Return a fault from its action's name and its options. Raises ValueError that names what is wrong."""
        try:
            chosen = FaultAction(action)
        except ValueError:
            raise ValueError(f"action: {action!r} is none of {', '.join(FaultAction)}") from None
        names = {item.name for item in fields(cls)} - {"action"}
        if unknown := sorted(options.keys() - names):
            raise ValueError(f"unknown option {', '.join(unknown)}; a fault has {', '.join(sorted(names))}")
        try:
            return cls(action=chosen, **options)
        except TypeError as error:
            raise ValueError(f"an option has a value of the wrong type: {error}") from error

    @property
    def codes(self) -> frozenset[int] | None:
        """The request codes that the fault concerns; None for all that go to brokers."""
        if self.request is None:
            return REQUESTS["route"] if self.action is FaultAction.ROUTE else None
        return REQUESTS[self.request] if isinstance(self.request, str) else frozenset({self.request})


class Fault:
    """A fault in force: ``hits`` counts the requests that it concerned."""

    def __init__(self, number: int, spec: FaultSpec) -> None:
        self.id = number
        self.spec = spec
        self.hits = 0
        self._codes = spec.codes
        self._random = random.Random(spec.seed)

    def to_json(self) -> dict[str, Any]:
        """Return the fault as the control API shows it, without options that were not given."""
        conditions = {name: value for name, value in asdict(self.spec).items() if value is not None}
        return {"id": self.id, "hits": self.hits, **conditions}

    def try_hit(self, command: Command, client_names: Iterable[str]) -> bool:
        """Count the request and return True if the fault concerns it."""
        spec = self.spec
        if spec.times is not None and self.hits >= spec.times:
            return False
        if self._codes is None:
            if command.code in REQUESTS["route"]:
                return False
        elif command.code not in self._codes:
            return False
        if spec.topic is not None and spec.topic != topic_of(command):
            return False
        if spec.group is not None and spec.group != group_of(command):
            return False
        if spec.client is not None and spec.client not in client_names:
            return False
        if spec.probability < 1 and self._random.random() >= spec.probability:
            return False
        self.hits += 1
        return True


class FaultTable:
    """The faults in force, in the order in which they were added. Safe to use from any thread."""

    def __init__(self) -> None:
        self.active: tuple[Fault, ...] = ()
        self._numbers = count(1)
        self._lock = threading.Lock()

    def add(self, action: str, **options: Any) -> Fault:
        """Put a fault in force and return it. Raises ValueError that names what is wrong."""
        spec = FaultSpec.parse(action, options)
        with self._lock:
            fault = Fault(next(self._numbers), spec)
            self.active += (fault,)
        return fault

    def remove(self, fault: Fault) -> None:
        """End a fault. Does nothing if it has ended."""
        with self._lock:
            self.active = tuple(active_fault for active_fault in self.active if active_fault is not fault)

    def clear(self) -> None:
        """End all faults. Their counts stay readable."""
        with self._lock:
            self.active = ()

    def find(self, command: Command, client_names: Iterable[str]) -> list[Fault]:
        """Return the faults that a request meets: every latency, and the first fault of any other kind."""
        matching: list[Fault] = []
        is_decided = False
        for fault in self.active:
            is_latency = fault.spec.action is FaultAction.LATENCY
            if (is_latency or not is_decided) and fault.try_hit(command, client_names):
                matching.append(fault)
                is_decided = is_decided or not is_latency
        return matching


def topic_of(command: Command) -> str | None:
    """Return the topic that a request names in its header."""
    return command.ext.get("b" if command.code in _V2 else "topic")


def group_of(command: Command) -> str | None:
    """Return the group that a request names in its header."""
    ext = command.ext
    if command.code in _V2:
        return ext.get("a")
    return ext.get("consumerGroup") or ext.get("producerGroup") or ext.get("group")
