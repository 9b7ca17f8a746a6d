"""Helpers of the store's tests."""

from storage.config import StoreConfig


class FakeClock:
    """A clock that moves only by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000


def small_config(**changes: object) -> StoreConfig:
    """Build settings with files so small that a few messages fill them."""
    settings: dict[str, object] = {
        "root": "/s",
        "commit_log_file_bytes": 8192,
        "consume_queue_file_entries": 5,
        "index_slots": 8,
        "index_entries": 32,
        "max_message_bytes": 4096,
        "reserve_commit_log_bytes": 1000,
        "reserve_queue_bytes": 40,
        "max_open_queue_files": 4,
    }
    return StoreConfig(**(settings | changes))
