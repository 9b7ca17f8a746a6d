"""Notices members of one consumer group that subscribe to different messages.

A group has one subscription per topic, that of the latest heartbeat (`client_registry.py`). Members that disagree
overwrite each other's, and messages are skipped without a trace: the most common mistake of users, and hard to find.

Here each topic has the member that stated its subscription last. A heartbeat of another member that states something
else, or leaves the topic out, is a conflict of the two. It is over when one of them leaves, or states what the other
has stated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from codec.topics import RETRY_PREFIX
from remoting.bodies.heartbeat import SubscriptionData

if TYPE_CHECKING:
    from gateway.broker.consumers.client_registry import GroupMember
    from remoting.connection import Connection

MAX_WATCHED_TOPICS: Final = 100
"""Topics of one group that are watched: others keep no memory beyond the group's own subscriptions."""
MAX_SHOWN_CHARS: Final = 200
NOT_SUBSCRIBED: Final = "not subscribed"


@dataclass(frozen=True, slots=True)
class Statement:
    """The subscription of one member to one topic: its text, cut for the log, and a hash of its meaning."""

    member: "GroupMember"
    text: str
    meaning: int

    def agrees_with(self, subscription: SubscriptionData | None) -> bool:
        """Return True for a subscription that selects the same messages; None selects nothing."""
        return self.meaning == _meaning_of(subscription)


@dataclass(frozen=True, slots=True)
class SubscriptionConflict:
    """Two members of a group that subscribe to different messages of a topic."""

    topic: str
    first: Statement
    second: Statement


def _meaning_of(subscription: SubscriptionData | None) -> int:
    return 0 if subscription is None else hash(subscription.selection)


def _statement(member: "GroupMember", subscription: SubscriptionData | None) -> Statement:
    text = NOT_SUBSCRIBED if subscription is None else subscription.expression_text[:MAX_SHOWN_CHARS]
    return Statement(member, text, _meaning_of(subscription))


class SubscriptionConflicts:
    """The statements and present conflicts of one group."""

    __slots__ = ("_latest", "present")

    def __init__(self) -> None:
        self._latest: dict[str, Statement] = {}
        self.present: dict[str, SubscriptionConflict] = {}

    def note(
        self,
        member: "GroupMember",
        subscriptions: Mapping[str, SubscriptionData],
        members: "Mapping[Connection, GroupMember]",
    ) -> list[SubscriptionConflict]:
        """Take over the subscriptions of one member's heartbeat by topic, and return the conflicts that are new."""
        stated = {
            topic: subscription
            for topic, subscription in subscriptions.items()
            if not topic.startswith(RETRY_PREFIX)
        }
        new = []
        for topic in [
            *stated,
            *(earlier_topic for earlier_topic in self._latest if earlier_topic not in stated),
        ]:
            subscription = stated.get(topic)
            self._end_if_agreed(topic, member, subscription)
            conflict = self._find(topic, member, subscription, members)
            if conflict is not None and topic not in self.present:
                self.present[topic] = conflict
                new.append(conflict)
            self._remember(topic, member, subscription)
        return new

    def _find(
        self,
        topic: str,
        member: "GroupMember",
        subscription: SubscriptionData | None,
        members: "Mapping[Connection, GroupMember]",
    ) -> SubscriptionConflict | None:
        latest = self._latest.get(topic)
        if latest is None:
            # The first member to subscribe to this topic. If others are online already, they have left it out.
            other = next((candidate for candidate in members.values() if candidate is not member), None)
            if other is None or subscription is None or len(self._latest) >= MAX_WATCHED_TOPICS:
                return None
            return SubscriptionConflict(topic, _statement(other, None), _statement(member, subscription))
        if latest.member is member or latest.agrees_with(subscription):
            return None
        return SubscriptionConflict(topic, latest, _statement(member, subscription))

    def _end_if_agreed(
        self, topic: str, member: "GroupMember", subscription: SubscriptionData | None
    ) -> None:
        conflict = self.present.get(topic)
        if conflict is None:
            return
        if conflict.first.member is member:
            other = conflict.second
        elif conflict.second.member is member:
            other = conflict.first
        else:
            return
        if other.agrees_with(subscription):
            del self.present[topic]

    def _remember(self, topic: str, member: "GroupMember", subscription: SubscriptionData | None) -> None:
        latest = self._latest.get(topic)
        if subscription is None:
            if latest is not None and latest.member is member:
                del self._latest[topic]
        elif latest is not None or len(self._latest) < MAX_WATCHED_TOPICS:
            self._latest[topic] = _statement(member, subscription)

    def forget(self, member: "GroupMember") -> None:
        """Forget a member that has left, with its conflicts."""
        self._latest = {
            topic: statement for topic, statement in self._latest.items() if statement.member is not member
        }
        self.present = {
            topic: conflict
            for topic, conflict in self.present.items()
            if conflict.first.member is not member and conflict.second.member is not member
        }
