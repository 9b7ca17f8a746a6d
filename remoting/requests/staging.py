"""Requests of writers that want their messages to appear once, when all are there; no official server knows them."""

from remoting.declare import Header, Request, i32, i64
from remoting.fields import field
from remoting.json_body import JsonBody


class StagingStateReply(Header):
    """The last batch that was published, -1 for none."""

    published: i64


class GetStagingState(Request[StagingStateReply], code=770_002):
    """How far a writer is. Refused where staging is not allowed."""

    writer: str


class StageMessages(Request[StagingStateReply], code=770_003):
    """Keep messages of one queue until their batch is published; the body is that of a batch send.

    ``number`` counts the pieces of a stage from 0; the same piece once more changes nothing. Nothing is kept of a
    batch that was published already, as the reply says.
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
    """One task's stage, and how many pieces it has."""

    name: str
    pieces: i32


class StagesBody(JsonBody):
    """The stages that make up a batch, in order."""

    stages: list[StagePieces] = field(factory=list)


class PublishStagedReply(Header):
    """How many messages were published, 0 when that had been done before."""

    messages: i64


class PublishStaged(Request[PublishStagedReply], code=770_004):
    """Append the messages of these stages to their queues, once, whatever happens and however often it is asked.

    ``stream`` writers may come back at any time, so what they published last is remembered for good. Batches of a
    writer rise; all of a batch's stages that are not named are forgotten.
    """

    writer: str
    batch: i64
    stream: bool
    data: StagesBody
