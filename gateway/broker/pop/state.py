"""The state of pop consumption that its request handlers share."""

from dataclasses import dataclass

from gateway.broker.pop.ordered_pops import OrderedPopTable
from gateway.broker.pop.pop_offsets import PopOffsets
from gateway.broker.pop.request_checks import PopRequestChecks
from gateway.broker.pop.reviver import Reviver
from gateway.broker.pop.waiting_pops import WaitingPops


@dataclass(frozen=True, slots=True)
class PopState:
    """The messages that consumers hold, the pops that wait, the offsets of the next pops, and the request checks."""

    reviver: Reviver
    ordered_pops: OrderedPopTable
    waiting_pops: WaitingPops
    pop_offsets: PopOffsets
    checks: PopRequestChecks
