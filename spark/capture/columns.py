"""Columns of captured exchanges, of the messages in them, and of damaged parts of files."""

from typing import Final

import pyarrow as pa

from spark.schema import COLUMNS, Column

_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = pa.map_(pa.string(), pa.string())

_PLACE: Final = (
    Column("file", pa.string(), "string", "Name of the capture file, without its folder."),
    Column("position", pa.int64(), "bigint", "Where the block begins in the file, bytes."),
    Column("record", pa.int32(), "int", "Number of the record in its block, from 0."),
)

EXCHANGES: Final = (
    Column("time", _TIME, "timestamp", "Time when the request arrived at the gateway, to the ms."),
    Column("code", pa.int32(), "int", "Request code."),
    Column("name", pa.string(), "string", "Its name, e.g. SEND_MESSAGE_V2; null for unknown codes."),
    Column("topic", pa.string(), "string", "Topic; null for requests without one."),
    Column("group", pa.string(), "string", "Group of producers or consumers; null for none."),
    Column("client", pa.string(), "string", "The client's address, `host:port`."),
    Column("upstream", pa.string(), "string", "Address of the broker or name server that got the request."),
    Column("brokerName", pa.string(), "string", "The broker's name; null for a name server."),
    Column(
        "connection", pa.int64(), "bigint", "Number of the client's connection, never used twice in a run."
    ),
    Column("language", pa.string(), "string", "The client's language, as the request says."),
    Column("oneway", pa.bool_(), "boolean", "The client waited for no answer."),
    Column(
        "fields", _TEXTS, "map<string,string>", "Header fields of the request, by their names on the wire."
    ),
    Column(
        "queueId",
        pa.int32(),
        "int",
        "Sends: queue that stored the message, or the requested one; other requests: their queue.",
    ),
    Column(
        "queueOffset",
        pa.int64(),
        "bigint",
        "Stored sends: offset of the (first) message, null while it waits elsewhere (delayed, half); pulls: the "
        "requested offset.",
    ),
    Column(
        "msgId", pa.string(), "string", "Sends: UNIQ_KEY of the (first) message, or the id of the answer."
    ),
    Column("tags", pa.string(), "string", "Sends: the tag of the (first) message."),
    Column("keys", pa.string(), "string", "Sends: the keys of the (first) message."),
    Column("shardingKey", pa.string(), "string", "Sends: the sharding key of the (first) message."),
    Column("reconsumeTimes", pa.int32(), "int", "Sends: number of times a consumer sent the message back."),
    Column("messages", pa.int32(), "int", "Messages in a send, or in the answer of a pull; null elsewhere."),
    Column("bodyBytes", pa.int32(), "int", "Size of the request's body as sent."),
    Column("answerCode", pa.int32(), "int", "Code of the answer the client got; null without an answer."),
    Column("answerRemark", pa.string(), "string", "Its remark."),
    Column("targetCode", pa.int32(), "int", "Code of the mirror's target's answer; null without one."),
    Column("targetRemark", pa.string(), "string", "Its remark."),
    Column(
        "fate",
        pa.string(),
        "string",
        "Outcome at the target: mirrored, skipped, refused, dropped; null: unknown.",
    ),
    Column(
        "gatewayUs",
        pa.int64(),
        "bigint",
        "The gateway's share: from arrival until it was passed on, \u00b5s.",
    ),
    Column(
        "primaryUs",
        pa.int64(),
        "bigint",
        "From then until the primary's answer, or until it could no longer come, \u00b5s; null if byTarget.",
    ),
    Column("targetUs", pa.int64(), "bigint", "Time the target took, \u00b5s; null if it got no request."),
    Column(
        "byTarget",
        pa.bool_(),
        "boolean",
        "The answer is the target's: primary and target had changed roles.",
    ),
    Column("reverse", pa.bool_(), "boolean", "The broker sent this request to the client."),
    Column("redacted", pa.bool_(), "boolean", "Frames were changed before they were written."),
    Column("unreadable", pa.bool_(), "boolean", "The request, or an answer, is not a valid command."),
    Column("requestBytes", pa.int64(), "bigint", "Size of the request's frame."),
    Column("answerBytes", pa.int64(), "bigint", "Size of the answer's frame; null without one."),
    Column("targetBytes", pa.int64(), "bigint", "Size of the target's answer's frame; null without one."),
    *_PLACE,
)

BODY: Final = Column(
    "body", pa.binary(), "binary", "Sends of one message: its body, decompressed; else the body sent."
)
FRAMES: Final = (
    Column("request", pa.binary(), "binary", "The request's frame with its length word."),
    Column("answer", pa.binary(), "binary", "The answer's frame; null without one."),
    Column("target", pa.binary(), "binary", "The frame of the target's answer; null without one."),
)

MESSAGES: Final = (
    *COLUMNS,
    Column("how", pa.string(), "string", "`sent` by a client, or `read` in the answer to a pull or pop."),
    Column("time", _TIME, "timestamp", "Time when the request arrived at the gateway, to the ms."),
    Column("code", pa.int32(), "int", "Request code."),
    Column("client", pa.string(), "string", "The client that sent or read it, `host:port`."),
    Column("group", pa.string(), "string", "Group of that client."),
    Column(
        "answerCode", pa.int32(), "int", "Sent: code of the client's answer; 0, 10, 11, 12: it was stored."
    ),
    Column(
        "waits", pa.string(), "string", "Sent: `delayed` or `half` where the message first waits elsewhere."
    ),
    Column("batchIndex", pa.int32(), "int", "Number of the message in its request or answer, from 0."),
    Column("bodyBytes", pa.int32(), "int", "Size of the body as sent or stored (compressed)."),
    Column(
        "fate",
        pa.string(),
        "string",
        "Sent: outcome at the target: mirrored, skipped, refused, dropped; null: unknown.",
    ),
    Column("targetCode", pa.int32(), "int", "Sent: the target's answer; null without one."),
    Column("targetQueueId", pa.int32(), "int", "Sent: the queue at the target."),
    Column("targetQueueOffset", pa.int64(), "bigint", "Sent: the offset at the target."),
    Column("redacted", pa.bool_(), "boolean", "Frames were changed before they were written."),
    *_PLACE,
)

DAMAGE: Final = (
    Column("file", pa.string(), "string", "Path of the capture file."),
    Column("position", pa.int64(), "bigint", "Where the damage begins in the file, bytes."),
    Column("bytes", pa.int64(), "bigint", "Size of the damage."),
    Column("reason", pa.string(), "string", "Reason why it cannot be read."),
)
