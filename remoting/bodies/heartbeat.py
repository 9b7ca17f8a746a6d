"""Bodies of heartbeats: the producers, consumers and subscriptions of a client."""

from typing import Any

from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class SubscriptionData(JsonBody):
    """One subscription: ``sub_string`` as the user wrote it, with its tags and their Java hash codes."""

    class_filter_mode: bool = False
    topic: str
    sub_string: str = "*"
    tags_set: list[str] = field(factory=list)
    code_set: list[i32] = field(factory=list)
    sub_version: i64 = 0
    expression_type: str = "TAG"

    @property
    def selection(self) -> tuple[str, frozenset[str]]:
        """The messages that the subscription selects, equal for texts that mean the same: type, and tags or expression.

        All messages are the tag ``*``.
        """
        text = (self.sub_string or "*").strip() or "*"
        if self.expression_type and self.expression_type != "TAG":
            return self.expression_type, frozenset((text,))
        tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
        return "TAG", tags or frozenset("*")

    @property
    def expression_text(self) -> str:
        """The expression for people: ``a || b``, or with its type if that is not TAG."""
        is_tag = not self.expression_type or self.expression_type == "TAG"
        return (self.sub_string or "*") if is_tag else f"{self.expression_type}: {self.sub_string}"


class ProducerData(JsonBody):
    """A producer group of the client."""

    group_name: str


class ConsumerData(JsonBody):
    """A consumer group of the client.

    ``consume_type`` is CONSUME_ACTIVELY, CONSUME_PASSIVELY or CONSUME_POP; ``message_model`` BROADCASTING or
    CLUSTERING; ``consume_from_where`` CONSUME_FROM_LAST_OFFSET, _FIRST_OFFSET or _TIMESTAMP.
    """

    group_name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[SubscriptionData] = field(factory=list)
    unit_mode: bool = False


class HeartbeatData(JsonBody):
    """The body of HEART_BEAT. A fingerprint other than 0 says that subscriptions may be left out."""

    client_id: str = field(wire="clientID")
    producer_data_set: list[ProducerData] = field(factory=list)
    consumer_data_set: list[ConsumerData] = field(factory=list)
    heartbeat_fingerprint: i32 = 0
    without_sub: bool = False


class ReceivedHeartbeat(JsonBody):
    """A `HeartbeatData` whose groups are not decoded yet: a broker counts them first, and decodes them in slices."""

    client_id: str = field(wire="clientID")
    producer_data_set: list[Any] = field(factory=list)
    consumer_data_set: list[Any] = field(factory=list)
    heartbeat_fingerprint: i32 = 0
    without_sub: bool = False


class CheckClientRequestBody(JsonBody):
    """A subscription to be checked before a consumer starts."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None
