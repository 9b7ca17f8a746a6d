"""Subscriptions of 5.x clients as brokers know them. Source: FilterAPI.build, GrpcConverter, 5.4.0."""

from codec.hashing import java_hash
from gateway.broker.filters.message_filter import SQL92, SUBSCRIBE_ALL, TAG, split_tags
from gateway.grpc_front import messages
from gateway.grpc_front.statuses import StatusError
from remoting.bodies.heartbeat import SubscriptionData


def subscription_to(topic: str, expression: messages.FilterExpression, version: int) -> SubscriptionData:
    """Return a subscription with the tags of its expression. Raises StatusError for an expression without any."""
    text = expression.expression
    if expression.type == messages.SQL:
        if not text.strip():
            raise StatusError(messages.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
        return SubscriptionData(topic=topic, sub_string=text, sub_version=version, expression_type=SQL92)
    if not text.strip() or text == SUBSCRIBE_ALL:
        return SubscriptionData(topic=topic, sub_string=SUBSCRIBE_ALL, sub_version=version)
    tags = list(dict.fromkeys(split_tags(text)))
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
