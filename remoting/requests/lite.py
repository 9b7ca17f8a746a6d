"""Requests about lite topics, new in 5.5.0."""

from remoting.bodies.lite import (
    GetBrokerLiteInfoResponseBody,
    GetLiteClientInfoResponseBody,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    GetParentTopicInfoResponseBody,
    LiteSubscriptionCtlRequestBody,
)
from remoting.declare import Header, Request, RpcRequest, i32, i64


class PopLiteMessageReply(Header):
    """The answer to POP_LITE_MESSAGE."""

    pop_time: i64
    invisible_time: i64
    revive_qid: i32
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PopLiteMessage(RpcRequest[PopLiteMessageReply], code=200070, accept_codes=(209, 210)):
    """Pop messages of a client's lite topics."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: i32 = 0
    invisible_time: i64 = 0
    poll_time: i64 = 0
    born_time: i64 = 0
    attempt_id: str | None = None


class LiteSubscriptionCtl(RpcRequest[None], code=200071):
    """Change the lite topics a client subscribes to."""

    data: LiteSubscriptionCtlRequestBody


class AckLiteMessage(Request[None], code=200072):
    """Acknowledge a message of a lite topic."""


class NotifyUnsubscribeLite(RpcRequest[None], code=200073):
    """Tell a client that a lite topic was removed. Sent by the broker."""

    lite_topic: str
    consumer_group: str
    client_id: str


class GetBrokerLiteInfoReply(Header):
    """The answer to GET_BROKER_LITE_INFO."""

    data: GetBrokerLiteInfoResponseBody


class GetBrokerLiteInfo(Request[GetBrokerLiteInfoReply], code=200074):
    """Return the lite topics of a broker."""


class GetParentTopicInfoReply(Header):
    """The answer to GET_PARENT_TOPIC_INFO."""

    data: GetParentTopicInfoResponseBody


class GetParentTopicInfo(Request[GetParentTopicInfoReply], code=200075):
    """Return the lite topics below a parent topic."""

    topic: str


class GetLiteTopicInfoReply(Header):
    """The answer to GET_LITE_TOPIC_INFO."""

    data: GetLiteTopicInfoResponseBody


class GetLiteTopicInfo(Request[GetLiteTopicInfoReply], code=200076):
    """Return the subscribers of a lite topic."""

    parent_topic: str | None = None
    lite_topic: str | None = None


class GetLiteClientInfoReply(Header):
    """The answer to GET_LITE_CLIENT_INFO."""

    data: GetLiteClientInfoResponseBody


class GetLiteClientInfo(Request[GetLiteClientInfoReply], code=200077):
    """Return the lite topics of a client."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    max_count: i32 = 1000


class GetLiteGroupInfoReply(Header):
    """The answer to GET_LITE_GROUP_INFO."""

    data: GetLiteGroupInfoResponseBody


class GetLiteGroupInfo(Request[GetLiteGroupInfoReply], code=200078):
    """Return the lag of a group."""

    group: str
    lite_topic: str | None = None
    top_k: i32 = 0


class TriggerLiteDispatch(Request[None], code=200079):
    """Check again for messages of a group's lite topics."""

    group: str
    client_id: str | None = None
