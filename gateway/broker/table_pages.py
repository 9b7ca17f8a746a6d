"""One page of a table whose owner may have changed it in between. Not responsible for the tables."""

from collections.abc import Mapping
from typing import Final, TypeVar

from remoting.bodies.queues import DataVersion
from remoting.errors import RequestError

T = TypeVar("T")

MAX_PAGE_ENTRIES: Final = 2000
"""Most entries of one page. Source: BrokerConfig.splitMetadataSize, 5.4.0."""


def select_page(
    table: Mapping[str, T],
    version: DataVersion,
    seen_version: str | None,
    start: int | None,
    size: int | None,
) -> dict[str, T]:
    """Entries [start, start + size) by name, from the beginning when the asker's version (JSON) is another
    one.

    Askers that name none of the three get everything. Source: TopicConfigManager.subTopicConfigTable, 5.4.0.
    """
    if seen_version is None and start is None and size is None:
        return dict(table)
    first = max(0, start or 0) if _is_same_version(version, seen_version) else 0
    count = min(MAX_PAGE_ENTRIES, MAX_PAGE_ENTRIES if size is None else max(0, size))
    return {name: table[name] for name in sorted(table)[first : first + count]}


def _is_same_version(version: DataVersion, seen_version: str | None) -> bool:
    if not seen_version or not seen_version.strip():
        return False
    try:
        return DataVersion.from_json(seen_version.encode()) == version
    except RequestError:
        return False
