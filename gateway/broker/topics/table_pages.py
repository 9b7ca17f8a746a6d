"""Paged reads of a table that may change between two pages."""

from typing import Final

from gateway.broker.topics.encoded_entries import EncodedEntries
from remoting.bodies.queues import DataVersion
from remoting.errors import RequestError

MAX_PAGE_ENTRIES: Final = 2000
"""Largest number of entries per page. Source: BrokerConfig.splitMetadataSize, 5.4.0."""


def select_page(
    entries: EncodedEntries,
    version: DataVersion,
    seen_version: str | None,
    start: int | None,
    size: int | None,
) -> list[str] | None:
    """Return the names of entries [start, start + size) in order; None for all entries.

    The page starts at the first entry when ``seen_version`` (JSON) is not the table's version any more. A client that
    passes none of the three gets the whole table. Source: TopicConfigManager.subTopicConfigTable, 5.4.0.
    """
    if seen_version is None and start is None and size is None:
        return None
    first = max(0, start or 0) if _is_same_version(version, seen_version) else 0
    count = min(MAX_PAGE_ENTRIES, MAX_PAGE_ENTRIES if size is None else max(0, size))
    return entries.sorted_names()[first : first + count]


def _is_same_version(version: DataVersion, seen_version: str | None) -> bool:
    if not seen_version or not seen_version.strip():
        return False
    try:
        return DataVersion.from_json(seen_version.encode()) == version
    except RequestError:
        return False
