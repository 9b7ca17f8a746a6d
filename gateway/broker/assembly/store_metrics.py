"""Metrics of a broker's store."""

from collections.abc import Iterator

from gateway.runtime.metrics import Metric
from storage.store import MessageStore


def store_metrics(part: str, store: MessageStore) -> Iterator[Metric]:
    """Yield whether the store of a broker, ``part``, takes messages, and why not."""
    labels = {"part": part}
    failed = store.flushes.failure is not None
    takes = float(not failed and not store.disk_full)
    yield Metric("store_writable", takes, "1 while the store takes messages", "gauge", labels)
    meaning = "1 after a flush to the disk failed; the store then takes no messages until a restart"
    yield Metric("store_flush_failed", float(failed), meaning, "gauge", labels)
    meaning = "1 while the disk is fuller than diskSpaceWarningLevelRatio, so that messages are refused"
    yield Metric("store_disk_full", float(store.disk_full), meaning, "gauge", labels)
