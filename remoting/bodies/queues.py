"""Message queues as clients name them, and the version counter that every table carries."""

from remoting.fields import i32, i64
from remoting.json_body import JsonBody, JsonKeyBody


class MessageQueue(JsonKeyBody):
    """A queue of a topic on one broker. Serves as a JSON object key."""

    topic: str
    broker_name: str
    queue_id: i32


class DataVersion(JsonBody):
    """A table's version: ``timestamp`` in ms since the epoch, ``counter`` of changes since."""

    state_version: i64 = 0
    timestamp: i64 = 0
    counter: i64 = 0
