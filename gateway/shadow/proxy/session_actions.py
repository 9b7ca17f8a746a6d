"""The actions that a session (`session.py`) asks its driver (`session_driver.py`) to perform."""

from dataclasses import dataclass
from enum import Enum

from remoting.transport import Buffer


class Peer(Enum):
    """One of the three connections of a session."""

    CLIENT = "client"
    PRIMARY = "primary"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Send:
    """Write bytes to a peer, in the order of these actions."""

    peer: Peer
    data: Buffer


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Read nothing more from a peer until `ResumeReading`."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read from a peer again; nothing happens if it is read from already."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class DialTarget:
    """Connect to the target, then call `Session.target_connected` or `Session.target_unreachable`."""


@dataclass(frozen=True, slots=True)
class CloseTarget:
    """Close the connection to the target."""


@dataclass(frozen=True, slots=True)
class StartStallTimer:
    """Call `Session.stall_timed_out` after the configured time, unless `StopStallTimer` comes first."""


@dataclass(frozen=True, slots=True)
class StopStallTimer:
    """Stop the stall timer."""


@dataclass(frozen=True, slots=True)
class AwaitDecision:
    """Call `Session.decision_made` after the director's next decision."""


@dataclass(frozen=True, slots=True)
class ContinueLater:
    """Call `Session.continue_turn` with this peer after all other tasks had their turn."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class EndSession:
    """Deliver what was received for each end, then close all connections."""


Action = (
    Send
    | PauseReading
    | ResumeReading
    | DialTarget
    | CloseTarget
    | StartStallTimer
    | StopStallTimer
    | AwaitDecision
    | ContinueLater
    | EndSession
)
