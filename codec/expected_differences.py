"""Expected differences between a stored message and its copy at another cluster, each with its reason.

All comparisons of a primary with its mirror use this table; those of answers' other fields live in
`gateway/shadow/compare/expected_differences.py`.
"""

from enum import Enum
from typing import Final

from codec import properties as names
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6


class DifferenceScope(Enum):
    """The targets at which a difference is expected."""

    ALWAYS = "always"
    OWN_OFFSETS = "not kept"
    """Only where the target assigns queue offsets of its own; with offset-preserving replication the property is
    compared.
    """


EXPECTED_PROPERTY_DIFFERENCES: Final = {
    names.MIN_OFFSET: (DifferenceScope.ALWAYS, "added when a message is read"),
    names.MAX_OFFSET: (DifferenceScope.ALWAYS, "added when a message is read"),
    names.CRC32: (DifferenceScope.ALWAYS, "a checksum over the rest, which is compared itself"),
    names.CLUSTER: (DifferenceScope.OWN_OFFSETS, "the name of the cluster that stored it"),
    names.MSG_REGION: (DifferenceScope.OWN_OFFSETS, "a setting of the broker that stored it"),
    names.TRACE_SWITCH: (DifferenceScope.OWN_OFFSETS, "a setting of the broker that stored it"),
    names.BORN_HOST: (
        DifferenceScope.OWN_OFFSETS,
        "a mirror uses it to name the original sender to an official broker",
    ),
    names.TRANSACTION_PREPARED_QUEUE_OFFSET: (
        DifferenceScope.OWN_OFFSETS,
        "a queue offset of the half message",
    ),
    names.ORIGIN_MESSAGE_ID: (
        DifferenceScope.OWN_OFFSETS,
        "an id made of the broker's address and its commit log's offset",
    ),
    names.DLQ_ORIGIN_MESSAGE_ID: (
        DifferenceScope.OWN_OFFSETS,
        "an id made of the broker's address and its commit log's offset",
    ),
    names.TRANSACTION_CHECK_TIMES: (DifferenceScope.OWN_OFFSETS, "how often the broker asked its producer"),
    names.POP_CK: (DifferenceScope.OWN_OFFSETS, "a handle of the broker's own checkpoint"),
    names.FIRST_POP_TIME: (DifferenceScope.OWN_OFFSETS, "when the broker gave it to a consumer"),
    names.INNER_MULTI_QUEUE_OFFSET: (DifferenceScope.OWN_OFFSETS, "queue offsets of the broker's own"),
    names.TIMER_ENQUEUE_MS: (DifferenceScope.OWN_OFFSETS, "when the broker's own wheel did it"),
    names.TIMER_DEQUEUE_MS: (DifferenceScope.OWN_OFFSETS, "when the broker's own wheel did it"),
    names.TIMER_ROLL_TIMES: (DifferenceScope.OWN_OFFSETS, "how often the broker's own wheel turned"),
    names.TIMER_OUT_MS: (DifferenceScope.OWN_OFFSETS, "delays are counted from when the broker stored it"),
}
"""Properties of stored messages that are not compared, the targets this applies to, and the reason."""

EXPECTED_PROPERTY_NAMES: Final = {
    offset_preserving: frozenset(
        name
        for name, (scope, _) in EXPECTED_PROPERTY_DIFFERENCES.items()
        if not offset_preserving or scope is DifferenceScope.ALWAYS
    )
    for offset_preserving in (True, False)
}
"""The names of these properties, by whether the target keeps the primary's queue offsets."""

COMPARED_SYS_FLAG_BITS: Final = 0xFFFFFFFF & ~(BORN_HOST_V6 | STORE_HOST_V6)
"""The bits of a message's sys flag that are compared; the others describe the format of its hosts."""
