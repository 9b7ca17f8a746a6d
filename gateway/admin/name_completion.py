"""Reads names of a cluster for shell completion: with a short timeout, and without any output if it fails."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.client import AdminClient
from gateway.admin.errors import AdminError
from gateway.admin.groups import group_names
from gateway.admin.settings import load_settings
from gateway.admin.topics import USER, classify_topic, names_of_cluster
from remoting.requests.namesrv import GetAllTopicListFromNameserver
from toolkit.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_TIMEOUT_S: Final = 1.0
"""Maximum time for the names: the user waits for them after pressing the key."""


def find_names(kind: str, flags: Mapping[str, Any], start: str) -> list[str]:
    """Return the topics, groups or brokers (``kind``) that begin with ``start``; none without an answer."""
    ask: Callable[[AdminClient], list[str]] = {
        "topic": _topics,
        "group": lambda client: list(group_names(client)),
        "broker": lambda client: list(client.masters),
    }[kind]
    try:
        limited = {**flags, "timeout_s": min(flags.get("timeout_s") or MAX_TIMEOUT_S, MAX_TIMEOUT_S)}
        with AdminClient(load_settings(limited)) as client:
            return sorted(name for name in ask(client) if name.startswith(start))
    except (AdminError, SettingsError):
        return []


def _topics(client: AdminClient) -> list[str]:
    names = names_of_cluster(client)
    listed = client.ask_namesrv(GetAllTopicListFromNameserver()).data.topic_list
    return [topic for topic in listed if classify_topic(topic, names) == USER]
