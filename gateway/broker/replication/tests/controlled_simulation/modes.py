"""The modes of a group under controllers: for how many copies an answer waits, and what is kept then.

Most stories wait for all replicas in sync (allAckInSyncStateSet). Of each 36 seeds the last 12 wait for a number of
copies, or for nobody. No chance is drawn for that, so it does not change the course of the other seeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

PERIOD: Final = 36
FIRST_OF_COUNTED: Final = 24
ALL: Final = 9
NUMBERS: Final = (0, ALL, 1, 0, 2, ALL)
"""Numbers of brokers that must have a message (inSyncReplicas), by seed in turn; 0 means that it is not set."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The replicas that a master waits for. ``in_sync_replicas`` is 0 where it is not set.

    ``brokers`` is the size of the group.
    """

    all_ack: bool
    in_sync_replicas: int
    min_in_sync_replicas: int
    is_sync_flush: bool
    brokers: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], brokers: int) -> Self:
        """Return the mode of a group with these settings."""
        return cls(
            settings["all_ack_in_sync_state_set"],
            settings.get("in_sync_replicas", 0),
            settings["min_in_sync_replicas"],
            settings["flush_disk_type"] == "SYNC_FLUSH",
            brokers,
        )

    @property
    def keeps_acknowledged(self) -> bool:
        """True if each replica that can be elected has whatever was acknowledged."""
        is_on_two_of_two = self.in_sync_replicas == 0 and self.brokers == 2
        return self.all_ack or is_on_two_of_two or self.in_sync_replicas >= self.brokers


def mode_settings(seed: int, brokers: int) -> dict[str, Any]:
    """Return the settings of a seed's mode, for a group of this size."""
    number = seed % PERIOD - FIRST_OF_COUNTED
    if number < 0:
        return {"all_ack_in_sync_state_set": True}
    return {
        "all_ack_in_sync_state_set": False,
        "in_sync_replicas": min(NUMBERS[number % len(NUMBERS)], brokers),
        # Controllers decide who is master, so it makes no difference.
        "broker_role": ("ASYNC_MASTER", "SYNC_MASTER")[number // len(NUMBERS)],
    }
