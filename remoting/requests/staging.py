"""Private requests for staged batches: messages that become visible exactly once, when their batch is complete.

Official servers do not know their codes.
"""

from remoting.declare import Header, Request, i32, i64
from remoting.fields import field
from remoting.json_body import JsonBody


class StagingStateReply(Header):
    """The number of the last published batch, -1 for none."""

    published: i64


class GetStagingState(Request[StagingStateReply], code=770_002):
    """Return a writer's progress. Refused where staging is not allowed."""

    writer: str


class StageMessages(Request[StagingStateReply], code=770_003):
    """Stage messages of one queue until their batch is published; the body is that of a batch send.

    ``number`` counts the parts of a stage from 0; sending the same part again changes nothing. Parts of a batch that
    was already published, as the reply shows, are ignored.
    """

    writer: str
    batch: i64
    stage: str
    number: i32
    topic: str
    queue_id: i32
    sys_flag: i32
    born_timestamp: i64


class StagePieces(JsonBody):
    """One task's stage and its number of parts."""

    name: str
    pieces: i32


class StagesBody(JsonBody):
    """The stages that make up a batch, in order."""

    stages: list[StagePieces] = field(factory=list)


class PublishStagedReply(Header):
    """The number of messages published; 0 when the batch had been published before."""

    messages: i64


class PublishStaged(Request[PublishStagedReply], code=770_004):
    """Append the messages of these stages to their queues exactly once, however often the request is repeated.

    A ``stream`` writer may return at any time, so the number of its last batch is stored for ever. The batch numbers of
    a writer must rise. Stages of the batch that the request does not name are deleted.
    """

    writer: str
    batch: i64
    stream: bool
    data: StagesBody
