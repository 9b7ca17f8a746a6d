"""Subscriptions of 5.x clients as brokers know them. Source: FilterAPI.build, GrpcConverter, 5.4.0."""

from typing import Final

from codec.hashing import java_hash
from gateway.grpc_front import messages
from gateway.grpc_front.statuses import StatusError
from remoting.bodies.heartbeat import SubscriptionData

TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL: Final = "*"


def subscription_to(topic: str, expression: messages.FilterExpression, version: int) -> SubscriptionData:
    """Return a subscription with the tags of its expression. Raises StatusError for an expression without any."""
    text = expression.expression
    if expression.type == messages.SQL:
        if not text.strip():
            raise StatusError(messages.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
        return SubscriptionData(topic=topic, sub_string=text, sub_version=version, expression_type=SQL92)
    if not text.strip() or text == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version)
    tags = list(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
    if not tags:
        raise StatusError(messages.ILLEGAL_FILTER_EXPRESSION, f"the expression {text!r} names no tag")
    return SubscriptionData(
        topic=topic,
        sub_string=text,
        tags_set=tags,
        code_set=[java_hash(tag) for tag in tags],
        sub_version=version,
        expression_type=TAG,
    )
