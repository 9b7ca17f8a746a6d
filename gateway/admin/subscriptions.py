"""Finds members of one consumer group that subscribe to different messages.

A broker keeps one subscription per group and topic, that of the latest heartbeat. Members that disagree overwrite each
other's, and messages that the one wants and the other does not are skipped without a trace.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from codec.topics import RETRY_PREFIX
from remoting.bodies.heartbeat import SubscriptionData

NOT_SUBSCRIBED = "not subscribed"


def find_inconsistencies(members: Mapping[str, Iterable[SubscriptionData]]) -> list[dict[str, Any]]:
    """Return the topics on which members disagree: each with its subscriptions and the clients that have it.

    ``members`` are the subscriptions by client id. Retry topics are left out: clients subscribe to them by themselves.
    """
    by_client = {
        client: {each.topic: each for each in subscriptions if not each.topic.startswith(RETRY_PREFIX)}
        for client, subscriptions in sorted(members.items())
    }
    found = []
    for topic in sorted({topic for held in by_client.values() for topic in held}):
        variants: dict[Any, dict[str, Any]] = {}
        for client, held in by_client.items():
            mine = held.get(topic)
            key = mine.selection if mine is not None else None
            text = mine.expression_text if mine is not None else NOT_SUBSCRIBED
            variants.setdefault(key, {"subscription": text, "clients": []})["clients"].append(client)
        if len(variants) > 1:
            found.append({"topic": topic, "subscriptions": list(variants.values())})
    return found


def describe_inconsistency(inconsistency: Mapping[str, Any]) -> str:
    """Return one sentence that names the topic, and for each subscription a client that has it."""
    parts = []
    for variant in inconsistency["subscriptions"]:
        clients, text = variant["clients"], variant["subscription"]
        others = f" and {len(clients) - 1} more" if len(clients) > 1 else ""
        shown = text if text == NOT_SUBSCRIBED else f'"{text}"'
        parts.append(f"{clients[0]}{others}: {shown}")
    return f"{inconsistency['topic']}: {'; '.join(parts)}"
