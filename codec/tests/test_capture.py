"""Capture files: written records are read back; damage is reported and never read as something else."""

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec import capture, layouts
from codec.capture import (
    BLOCK_MAGIC,
    FATES,
    MAX_BLOCK_TOPICS,
    TRAILER,
    BlockBuilder,
    CaptureBlock,
    CaptureRecord,
    Damage,
    decode_header,
    encode_header,
    encode_index,
    iter_blocks,
    may_contain,
    read_block,
    read_index,
    scan_records,
    walk_blocks,
)
from codec.errors import CaptureError

TOPICS = ["", "orders", "payments", "größer"]
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    CaptureRecord,
    code=st.integers(-(2**31), 2**31 - 1),
    request=st.binary(max_size=60),
    answer=st.none() | st.binary(max_size=60),
    target=st.none() | st.binary(max_size=60),
    wall_ms=I64,
    asked_us=I64,
    forwarded_us=U32,
    answered_us=U32,
    target_us=U32,
    connection=st.integers(0, 2**64 - 1),
    client=st.sampled_from(["", "10.0.0.1:50000"]),
    upstream=st.sampled_from(["", "10.0.0.9:10911"]),
    broker=st.sampled_from(["", "broker-a"]),
    topic=st.sampled_from(TOPICS),
    group=st.text(st.characters(codec="utf-8"), max_size=8),
    fate=st.sampled_from(FATES),
    reverse=st.booleans(),
    by_target=st.booleans(),
    redacted=st.booleans(),
)
FILES = st.lists(st.lists(RECORDS, min_size=1, max_size=4), max_size=4)


def file_of(groups, *, level=1, closed=True, created_ms=5, gateway="gw", run=7):
    """Return a file with one block for each group of records, and its blocks."""
    data, blocks = encode_header(created_ms, gateway, run), []
    for records in groups:
        builder = BlockBuilder()
        for record in records:
            builder.add_record(record)
        block_data, block = builder.build(len(data), level)
        data += block_data
        blocks.append(block)
    return data + (encode_index(len(data), blocks) if closed else b""), blocks


def some(count=3, **fields):
    """Return groups of one record each, all different."""
    return [
        [CaptureRecord(10, b"request %d" % n, b"answer %d" % n, wall_ms=n, topic=TOPICS[n % 4], **fields)]
        for n in range(count)
    ]


def read(data, **conditions):
    blocks = list(scan_records(data, **conditions))
    damage = [block for block in blocks if isinstance(block, Damage)]
    return [block for block in blocks if not isinstance(block, Damage)], damage


@given(groups=FILES, level=st.integers(0, 9), closed=st.booleans())
def test_written_records_are_read_back(groups, level, closed):
    data, blocks = file_of(groups, level=level, closed=closed)
    assert read(data) == ([record for group in groups for record in group], [])
    assert (read_index(data) == blocks) if closed else (read_index(data) is None)
    assert list(walk_blocks(data)) == blocks == list(iter_blocks(memoryview(data)))


def test_the_header_tells_who_wrote_it():
    data, _ = file_of([], created_ms=1234, gateway="shadow-1", run=2**64 - 1)
    header = decode_header(data)
    assert (header.created_ms, header.gateway, header.run) == (1234, "shadow-1", 2**64 - 1)
    assert data[header.size : header.size + 4] == BLOCK_MAGIC


@pytest.mark.parametrize("data", [b"", b"RMQGWCAP", b"GET / HTTP/1.1\r\n" * 5])
def test_other_files_are_refused(data):
    with pytest.raises(CaptureError, match="not a capture file"):
        decode_header(data)
    assert read(data)[0] == []
    assert [block.size for block in read(data)[1]] == [len(data)]


def test_a_later_version_is_refused():
    head = bytearray(encode_header(5, "gw", 7)[:-4])
    head[8:10] = (2).to_bytes(2)
    with pytest.raises(CaptureError, match="version 2 of the format"):
        decode_header(bytes(head) + zlib.crc32(head).to_bytes(4))


@settings(max_examples=150)
@given(groups=FILES, closed=st.booleans(), level=st.sampled_from([0, 1]), data=st.data())
def test_a_truncated_file_is_told_and_what_is_whole_is_read(groups, closed, level, data):
    whole, blocks = file_of(groups, closed=closed, level=level)
    cut = data.draw(st.integers(0, len(whole) - 1))
    records, damage = read(whole[:cut])
    complete = [
        group for group, block in zip(groups, blocks, strict=True) if block.position + block.size <= cut
    ]
    assert records == [record for group in complete for record in group]
    ends = {decode_header(whole).size, *(block.position + block.size for block in blocks)}
    index_end = len(whole) - TRAILER.size
    if closed and groups is not None:
        ends.add(index_end)
    # Told: as damage with its place, or, when it ends between blocks, as a file that nobody closed.
    assert read_index(whole[:cut]) is None
    assert bool(damage) == (cut not in ends)
    if damage:
        assert damage[-1].position + damage[-1].size == cut


@settings(max_examples=150)
@given(groups=FILES, closed=st.booleans(), level=st.sampled_from([0, 1]), data=st.data())
def test_a_flipped_bit_is_told_and_never_becomes_a_wrong_record(groups, closed, level, data):
    whole, blocks = file_of(groups, closed=closed, level=level)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    records, damage = read(bytes(damaged))
    expected = [
        record
        for group, block in zip(groups, blocks, strict=True)
        if not block.position <= bit // 8 < block.position + block.size
        for record in group
    ]
    assert records == expected
    in_header = bit // 8 < decode_header(whole).size
    if in_header:
        with pytest.raises(CaptureError):
            decode_header(damaged)
    assert damage or in_header


@given(
    groups=FILES,
    from_ms=st.none() | I64,
    until_ms=st.none() | I64,
    topics=st.none() | st.sets(st.sampled_from(TOPICS)),
    closed=st.booleans(),
)
def test_pruning_never_loses_a_record(groups, from_ms, until_ms, topics, closed):
    data, blocks = file_of(groups, closed=closed)
    expected = [
        record
        for group in groups
        for record in group
        if (from_ms is None or record.wall_ms >= from_ms)
        and (until_ms is None or record.wall_ms < until_ms)
        and (topics is None or record.topic in topics)
    ]
    assert read(data, from_ms=from_ms, until_ms=until_ms, topics=topics) == (expected, [])


def test_pruning_spares_blocks_that_hold_nothing_wanted():
    block = CaptureBlock(0, 0, 1, 100, 200, frozenset({"orders"}))
    assert may_contain(block)
    assert may_contain(block, from_ms=200, until_ms=201, topics={"orders", "payments"})
    assert not may_contain(block, from_ms=201)
    assert not may_contain(block, until_ms=100)
    assert not may_contain(block, topics={"payments"})
    assert may_contain(block._replace(topics=None), topics={"payments"})


def test_a_damaged_block_is_told_also_where_the_index_leads_to_it():
    data, blocks = file_of(some(3))
    middle = blocks[1]
    damaged = bytearray(data)
    damaged[middle.position + middle.size - 1] ^= 1
    records, damage = read(bytes(damaged))
    assert [record.wall_ms for record in records] == [0, 2]
    assert [(block.position, block.size) for block in damage] == [(middle.position, middle.size)]
    assert list(walk_blocks(bytes(damaged)))[1] == damage[0]


def test_a_block_inside_a_message_is_not_taken_for_one():
    """A client sends a capture file as a message, and the block around the message is damaged."""
    inner, _ = file_of(some(2))
    data, blocks = file_of([[CaptureRecord(310, inner)], *some(1)], level=0)
    damaged = bytearray(data)
    damaged[blocks[0].position + 60] ^= 1
    records, damage = read(bytes(damaged))
    assert [record.code for record in records] == [10]
    assert len(damage) == 1


def test_a_block_with_very_many_topics_is_of_any_topic():
    group = [CaptureRecord(10, b"", topic=f"t{n}") for n in range(MAX_BLOCK_TOPICS + 1)]
    data, (block,) = file_of([group])
    assert block.topics is None
    assert read_index(data) == [block]
    assert [record.topic for record in read(data, topics={"t77"})[0]] == ["t77"]


def test_a_full_block_says_so():
    builder = BlockBuilder()
    for n in range(0xFFFF - 5):
        builder.add_record(CaptureRecord(10, b"", client=str(n)))
        if len(builder._texts) > 0xFFFF - 5:
            break
    with pytest.raises(CaptureError, match="the block is full"):
        builder.add_record(CaptureRecord(10, b"", client="one more"))


def test_values_out_of_range_are_clamped_or_truncated():
    record = CaptureRecord(
        10, b"", wall_ms=1, forwarded_us=-1, answered_us=2**40, topic="x" * 70_000, group="\ud800"
    )
    ((read_back,), _) = read(file_of([[record]])[0])
    assert (read_back.forwarded_us, read_back.answered_us) == (0, 2**32 - 1)
    assert (len(read_back.topic), read_back.group) == (0xFFFF, "?")


def test_a_hostile_block_cannot_make_a_reader_allocate_more_than_it_says():
    data, (block,) = file_of([[CaptureRecord(10, bytes(100_000))]], level=9)
    head = bytearray(data[block.position : block.position + block.size])
    head[28:32] = (1000).to_bytes(4)
    head[4:8] = zlib.crc32(head[8:]).to_bytes(4)
    data = data[: block.position] + bytes(head)
    with pytest.raises(CaptureError, match="holds 1001 bytes, its head says 1000"):
        read_block(data, block)


@given(groups=FILES, level=st.integers(0, 1))
def test_the_layouts_are_the_declared_ones(groups, level):
    data, blocks = file_of(groups, level=level)
    header = layouts.CAPTURE_HEADER.parse(data)
    assert (header.version, header.created_ms, header.run, header.gateway) == (1, 5, 7, b"gw")
    assert header.crc == zlib.crc32(data[: decode_header(data).size - 4])
    for group, block in zip(groups, blocks, strict=True):
        piece = data[block.position : block.position + block.size]
        parsed = layouts.CAPTURE_BLOCK.parse(piece)
        assert (parsed.kind, parsed.position, parsed.size) == (1, block.position, block.size)
        assert (parsed.count, parsed.min_ms, parsed.max_ms) == block[2:5]
        assert {topic.decode() for topic in parsed.topics} == block.topics
        assert parsed.crc == zlib.crc32(piece[8:])
        plain = zlib.decompress(parsed.payload) if parsed.compression else parsed.payload
        assert len(plain) == parsed.plain_bytes
        _records_agree(layouts.CAPTURE_RECORDS.parse(plain), group)
    trailer = layouts.CAPTURE_TRAILER.parse(data[-layouts.CAPTURE_TRAILER.sizeof() :])
    _index_agrees(layouts.CAPTURE_BLOCK.parse(data[trailer.position : -TRAILER.size]), blocks)


def _records_agree(parsed, group):
    texts = [text.decode() for text in parsed.texts]
    assert len(parsed.records) == len(group)
    for parsed_record, record in zip(parsed.records, group, strict=True):
        for name in ("code", "request", "wall_ms", "asked_us", "connection", "forwarded_us", "target_us"):
            assert parsed_record[name] == getattr(record, name)
        for name in ("client", "upstream", "broker", "topic", "group"):
            assert texts[parsed_record[name]] == getattr(record, name)
        assert (parsed_record.answer, parsed_record.target) == (record.answer or b"", record.target or b"")
        assert FATES[parsed_record.fate] == record.fate
        bits = (record.answer is not None, record.target is not None, record.reverse, record.by_target)
        assert parsed_record.flags == sum(1 << n for n, bit in enumerate((*bits, record.redacted)) if bit)


def _index_agrees(block, blocks):
    assert (block.kind, block.count) == (2, len(blocks))
    plain = zlib.decompress(block.payload) if block.compression else block.payload
    index = layouts.CAPTURE_INDEX.parse(plain)
    for entry, block in zip(index.entries, blocks, strict=True):
        assert (entry.position, entry.size, entry.count, entry.min_ms, entry.max_ms) == block[:5]
        assert {index.topics[number].decode() for number in entry.topics} == block.topics


def test_a_file_full_of_beginnings_of_blocks_is_given_up():
    """Each claims the rest of the file: checking them all would read a gigabyte ten thousand times."""
    header = encode_header(5, "gw", 7)
    size = 1 << 20
    data = bytearray(header)
    while len(data) < size:
        at = len(data)
        data += capture.BLOCK_HEAD.pack(BLOCK_MAGIC, 1, at, size - at, 1, 0, 0, 1, 1, 0, 0, 0)
    checked = 0
    real = zlib.crc32

    def counting(part, *more):
        nonlocal checked
        checked += len(part)
        return real(part, *more)

    with pytest.MonkeyPatch.context() as context:
        context.setattr(capture, "_crc", counting)
        context.setattr(capture, "MIN_SEARCHED_BYTES", 0)
        blocks = list(walk_blocks(bytes(data)))
    assert [type(block) for block in blocks] == [Damage]
    assert blocks[0].position + blocks[0].size == len(data)
    assert checked <= (capture.SEARCHES_PER_BYTE + 3) * len(data)


@pytest.mark.parametrize(
    "payload",
    [
        (2**32 - 1).to_bytes(4),
        (10**6).to_bytes(4) + bytes(2 * 10**6),
        (0).to_bytes(4) + capture.INDEX_ENTRY.pack(0, 60, 1, 0, 0, 10**6) + bytes(4 * 10**6),
    ],
)
def test_an_index_that_claims_too_much_is_no_index(payload):
    position = 10_000
    block = CaptureBlock(position, 0, 1, 0, 0, frozenset())
    data = capture._encode_block(capture._INDEX, block, payload, 1)
    assert capture.decode_index(data, position) is None
    block = CaptureBlock(position, 0, 2**32 - 1, 0, 0, frozenset())
    assert capture.decode_index(capture._encode_block(capture._INDEX, block, payload, 1), position) is None
