"""Every byte layout of the protocol and the store, declared once as a specification.

Hot paths use `struct` for speed and are tested against these declarations.

Sources: RemotingCommand, RocketMQSerializable, MessageExtEncoder, MessageDecoder, ConsumeQueue, IndexHeader,
IndexFile, StoreCheckpoint, 5.4.0.
"""

from construct import (
    Bytes,
    BytesInteger,
    Const,
    GreedyBytes,
    GreedyRange,
    IfThenElse,
    Int8ub,
    Int16sb,
    Int16ub,
    Int32sb,
    Int32ub,
    Int64sb,
    Int64ub,
    OneOf,
    Prefixed,
    PrefixedArray,
    Struct,
    Terminated,
    this,
)

from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SERIALIZE_BINARY, SERIALIZE_JSON
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6

# A frame. Its first word counts all bytes after it; the header's word is a byte of type and three of length.
FRAME = Prefixed(
    Int32ub,
    Struct(
        "serialise_type" / OneOf(Int8ub, [SERIALIZE_JSON, SERIALIZE_BINARY]),
        "header" / Prefixed(BytesInteger(3), GreedyBytes),
        "body" / GreedyBytes,
    ),
)

# One header field of the binary serialisation, UTF-8.
HEADER_FIELD = Struct("name" / Prefixed(Int16ub, GreedyBytes), "value" / Prefixed(Int32ub, GreedyBytes))

# A header in the binary serialisation; an empty remark means none.
BINARY_HEADER = Struct(
    "code" / Int16sb,
    "language" / Int8ub,
    "version" / Int16sb,
    "opaque" / Int32sb,
    "flag" / Int32sb,
    "remark" / Prefixed(Int32ub, GreedyBytes),
    "fields" / Prefixed(Int32ub, GreedyRange(HEADER_FIELD)),
)

# An address with its port. Two bits of a message's system flag select the kind.
HOST_V4 = Struct("address" / Bytes(4), "port" / Int32ub)
HOST_V6 = Struct("address" / Bytes(16), "port" / Int32ub)

# A message in the commit log and in the body of a pull answer; `size` counts all of it, itself too. Offsets:
# queue offset in messages, physical offset in bytes from the start of the log. Timestamps: ms since 1970.
MESSAGE = Struct(
    "size" / Int32ub,
    "magic" / OneOf(Int32ub, [MAGIC_V1, MAGIC_V2]),
    "body_crc" / Int32ub,
    "queue_id" / Int32sb,
    "flag" / Int32sb,
    "queue_offset" / Int64sb,
    "physical_offset" / Int64sb,
    "sys_flag" / Int32sb,
    "born_timestamp" / Int64sb,
    "born_host" / IfThenElse(this.sys_flag & BORN_HOST_V6, HOST_V6, HOST_V4),
    "store_timestamp" / Int64sb,
    "store_host" / IfThenElse(this.sys_flag & STORE_HOST_V6, HOST_V6, HOST_V4),
    "reconsume_times" / Int32sb,
    "prepared_transaction_offset" / Int64sb,
    "body" / Prefixed(Int32ub, GreedyBytes),
    "topic"
    / IfThenElse(this.magic == MAGIC_V1, Prefixed(Int8ub, GreedyBytes), Prefixed(Int16ub, GreedyBytes)),
    "properties" / Prefixed(Int16ub, GreedyBytes),
)

# The marker after the last message of a commit log file; `size` counts the bytes to the end of the file.
BLANK = Struct("size" / Int32ub, "magic" / Const(MAGIC_BLANK, Int32ub))

# One message in the body of a batch send. Magic and CRC are 0 and are never read.
BATCH_ENTRY = Struct(
    "size" / Int32ub,
    "magic" / Int32ub,
    "body_crc" / Int32ub,
    "flag" / Int32sb,
    "body" / Prefixed(Int32ub, GreedyBytes),
    "properties" / Prefixed(Int16ub, GreedyBytes),
)
BATCH = Struct("entries" / GreedyRange(BATCH_ENTRY), Terminated)

# A message id, before it is written as hexadecimal digits: the broker's address and the physical offset.
MESSAGE_ID_V4 = Struct("host" / HOST_V4, "physical_offset" / Int64sb)
MESSAGE_ID_V6 = Struct("host" / HOST_V6, "physical_offset" / Int64sb)

# A producer's message id (unique key), before it is written as hexadecimal digits, without its first 4 or 16 bytes,
# which are the producer's address; the time counts from the start of the month.
UNIQUE_KEY_TAIL = Struct(
    "process_id" / Int16ub, "loader_hash" / Int32ub, "elapsed_ms" / Int32ub, "counter" / Int16ub
)

# Consume queue: one entry a message, at 20 bytes times its queue offset.
CONSUME_QUEUE_ENTRY = Struct("physical_offset" / Int64sb, "size" / Int32sb, "tags_code" / Int64sb)

# Index file: header, then slots, then entries. A slot holds the number of its newest entry, counted from 1 (0: none);
# each entry holds the number of the previous one in its slot. An entry's time is in seconds after the file's begin.
INDEX_HEADER = Struct(
    "begin_timestamp" / Int64sb,
    "end_timestamp" / Int64sb,
    "begin_physical_offset" / Int64sb,
    "end_physical_offset" / Int64sb,
    "hash_slot_count" / Int32sb,
    "index_count" / Int32sb,
)
INDEX_SLOT = Struct("newest_entry" / Int32sb)
INDEX_ENTRY = Struct(
    "key_hash" / Int32sb, "physical_offset" / Int64sb, "seconds" / Int32sb, "previous_entry" / Int32sb
)

# Checkpoint: the first bytes of a 4 KiB file. Everything up to these store timestamps (ms) is on disk. The last is
# ours; what the times of the index mean is described in docs/reference/store-format.md.
CHECKPOINT = Struct(
    "commit_log_timestamp" / Int64sb,
    "consume_queue_timestamp" / Int64sb,
    "index_timestamp" / Int64sb,
    "master_flushed_offset" / Int64sb,
    "confirm_physical_offset" / Int64sb,
    "index_flushed_until" / Int64sb,
)

# A capture file of the shadow gateway (docs/reference/capture-format.md). CRC-32 of all bytes before it.
CAPTURE_TEXT = Prefixed(Int16ub, GreedyBytes)
CAPTURE_HEADER = Struct(
    "magic" / Const(b"RMQGWCAP"),
    "version" / Int16ub,
    "gateway_bytes" / Int16ub,
    "created_ms" / Int64sb,
    "run" / Int64ub,
    "gateway" / Bytes(this.gateway_bytes),
    "crc" / Int32ub,
)

# A block; `size` is that of the whole block, the CRC covers the bytes after it. Topic count 2^32-1 means any topic.
CAPTURE_BLOCK = Struct(
    "magic" / Const(b"BLCK"),
    "crc" / Int32ub,
    "position" / Int64ub,
    "size" / Int32ub,
    "kind" / OneOf(Int8ub, [1, 2]),
    "compression" / OneOf(Int8ub, [0, 1]),
    "reserved" / Int16ub,
    "count" / Int32ub,
    "plain_bytes" / Int32ub,
    "min_ms" / Int64sb,
    "max_ms" / Int64sb,
    "topic_count" / Int32ub,
    "topics" / IfThenElse(this.topic_count == 0xFFFFFFFF, Bytes(0), CAPTURE_TEXT[this.topic_count]),
    "payload" / GreedyBytes,
)

# One exchange. The fields from client to group are indexes of texts; `size` is that of the whole record.
CAPTURE_RECORD = Struct(
    "size" / Int32ub,
    "flags" / Int8ub,
    "fate" / Int8ub,
    "code" / Int32sb,
    "wall_ms" / Int64sb,
    "asked_us" / Int64sb,
    "connection" / Int64ub,
    "forwarded_us" / Int32ub,
    "answered_us" / Int32ub,
    "target_us" / Int32ub,
    "client" / Int16ub,
    "upstream" / Int16ub,
    "broker" / Int16ub,
    "topic" / Int16ub,
    "group" / Int16ub,
    "request_bytes" / Int32ub,
    "answer_bytes" / Int32ub,
    "target_bytes" / Int32ub,
    "request" / Bytes(this.request_bytes),
    "answer" / Bytes(this.answer_bytes),
    "target" / Bytes(this.target_bytes),
)

# The content of a block of kind 1, uncompressed.
CAPTURE_RECORDS = Struct(
    "texts" / PrefixedArray(Int32ub, CAPTURE_TEXT), "records" / GreedyRange(CAPTURE_RECORD)
)

# The content of a block of kind 2, the index: topics of the whole file, and one entry for each block of records.
CAPTURE_INDEX_ENTRY = Struct(
    "position" / Int64ub,
    "size" / Int32ub,
    "count" / Int32ub,
    "min_ms" / Int64sb,
    "max_ms" / Int64sb,
    "topic_count" / Int32ub,
    "topics" / IfThenElse(this.topic_count == 0xFFFFFFFF, Bytes(0), Int32ub[this.topic_count]),
)
CAPTURE_INDEX = Struct(
    "topics" / PrefixedArray(Int32ub, CAPTURE_TEXT), "entries" / GreedyRange(CAPTURE_INDEX_ENTRY)
)

# The last bytes of a closed file: the position of the block with the index, and the CRC-32 of that.
CAPTURE_TRAILER = Struct("position" / Int64ub, "crc" / Int32ub, "magic" / Const(b"RMQGWEND"))
