"""The planted defects of the C sources, with what they break."""

import enum
from typing import Final

from storage.tests.planting.catalogue import Catalogue
from storage.tests.planting.defect import Defect, Edit, change

PLAIN_SENDS: Final = "native/plain_sends.c"
SEND_REQUEST: Final = "native/send_request.c"
BYTES: Final = "native/bytes.c"
DECODE_FRAME: Final = "native/decode_frame.c"
INDEX_KEYS: Final = "native/index_keys.c"
TEST_INDEX: Final = ("storage/tests/test_index_natively.py",)
_TESTS: Final = "gateway/tests/test_native_sends.py::"
_KILLED: Final = _TESTS + "test_a_process_that_ends_in_the_middle_of_an_append"
_CONFIRMED: Final = (_TESTS + "test_the_confirm_offset_moves_after_the_entries",)
_FULL_DISK: Final = (_TESTS + "test_a_full_disk_refuses_plain_sends",)
_HELD: Final = (_TESTS + "test_answers_that_wait_are_limited",)
_LOST_QUEUE: Final = (_TESTS + "test_a_queue_that_its_topic_has_lost",)
_WAITING_PULLS: Final = (_TESTS + "test_waiting_pulls_are_answered_by_a_plain_send",)
_CUT_FRAMES: Final = (_TESTS + "test_a_read_that_ends_within_a_frame",)
_END_OF_FILE: Final = (_TESTS + "test_a_message_that_ends_near_the_end_of_a_log_file",)
_DECODED: Final = "codec/tests/test_command_natively.py::"
_MUTATIONS: Final = (_DECODED + "test_frames_and_their_mutations",)
_LARGEST_HEADER: Final = (_DECODED + "test_largest_header_is_kept_to",)
_RARE_HEADERS: Final = (_DECODED + "test_rare_headers_are_left_to_python",)


def at_rule(rule: str, arguments: str = "defaults") -> tuple[str, ...]:
    """Return the test of the frames at the boundary of a rule."""
    return (f"{_TESTS}test_frames_at_the_boundary_of_a_rule[{arguments}-{rule}]",)


class Subject(enum.StrEnum):
    """The things that native sends could get wrong."""

    LENGTHS = "Lengths from the wire are checked"
    LEFT_TO_PYTHON = "What is not plain is left to Python"
    STORED = "Log, queue entry and answer are Python's"
    ORDER = "A kill leaves whole messages"
    COUNTS = "Every message is counted, and wakes who waits for it"
    LIMITS = "Limits and settings hold"
    INDEX = "The index of keys is Python's"


_WRITE_ENTRY: Final = (
    "    uint8_t *entry = (uint8_t *)queue->entries.buf + queue->position;\n"
    "    write_64(write_32(write_64(entry, (uint64_t)physical_offset), (uint32_t)size), "
    "(uint64_t)(int64_t)request->tags_code);\n"
)
_WRITE_MESSAGE: Final = "    write_message(self, request, queue, size, properties_size);\n"
_START_OF_MESSAGE: Final = "    to = write_32(to, crc32_of(request->body) & 0x7FFFFFFF);\n"

NATIVE_DEFECTS: Final = Catalogue(
    defects=(
        Defect(
            "frame-that-is-not-complete-taken",
            Subject.LENGTHS,
            change(PLAIN_SENDS, " || frame_size > data->len - position) break;", ") break;"),
            _CUT_FRAMES,
        ),
        Defect(
            "size-of-a-name-not-checked",
            Subject.LENGTHS,
            change(SEND_REQUEST, "        if ((size_t)(end - name.at) < name.size + 4) return false;\n", ""),
            at_rule("binary spellings"),
        ),
        Defect(
            "size-of-a-value-not-checked",
            Subject.LENGTHS,
            change(SEND_REQUEST, "        if ((size_t)(end - value.at) < value.size) return false;\n", ""),
            at_rule("binary spellings"),
        ),
        Defect(
            "room-for-unescaped-texts-not-checked",
            Subject.LENGTHS,
            change(
                SEND_REQUEST,
                "    if (UNESCAPED_BYTES - request->unescaped_size < (size_t)(end - start)) return NULL;\n",
                "",
            ),
            at_rule("JSON spellings"),
        ),
        Defect(
            "frames-larger-than-the-limit-taken",
            Subject.LENGTHS,
            change(PLAIN_SENDS, " || frame_size > self->max_frame_bytes", ""),
            at_rule("bodies", "small frames"),
        ),
        Defect(
            "headers-larger-than-the-limit-taken",
            Subject.LENGTHS,
            change(PLAIN_SENDS, " || header_size > self->max_header_bytes", ""),
            at_rule("other fields", "small frames"),
        ),
        Defect(
            "properties-one-byte-too-long-taken",
            Subject.LENGTHS,
            change(PLAIN_SENDS, "#define MAX_PROPERTIES_BYTES 0x7FFF", "#define MAX_PROPERTIES_BYTES 0x8000"),
            at_rule("property lengths"),
        ),
        Defect(
            "body-larger-than-the-limit-taken",
            Subject.LENGTHS,
            change(PLAIN_SENDS, " || (int64_t)request->body.size > self->max_body_bytes", ""),
            at_rule("bodies", "small messages"),
        ),
        Defect(
            "number-with-ten-digits-taken",
            Subject.LENGTHS,
            change(SEND_REQUEST, "read_number(text, 9, &value)", "read_number(text, 10, &value)"),
            at_rule("numbers"),
        ),
        Defect(
            "end-of-the-log-file-overwritten",
            Subject.LENGTHS,
            change(
                PLAIN_SENDS,
                "    if (end > self->limit || end > self->log_bytes.len)",
                "    if (end > self->log_bytes.len)",
            ),
            _END_OF_FILE,
        ),
        Defect(
            "key-at-the-end-of-another-name-taken",
            Subject.LEFT_TO_PYTHON,
            change(
                SEND_REQUEST,
                "    if (name == NULL || (name != properties.at && name[-1] != SEPARATOR)) return false;\n",
                "    if (name == NULL) return false;\n",
            ),
            at_rule("unique keys"),
        ),
        Defect(
            "pop-checkpoint-stored-as-sent",
            Subject.LEFT_TO_PYTHON,
            change(SEND_REQUEST, ' || CONTAINS(properties, "POP_CK") ||\n', " ||\n"),
            at_rule("special words"),
        ),
        Defect(
            "inner-batch-taken-for-a-message",
            Subject.LEFT_TO_PYTHON,
            change(SEND_REQUEST, "(0xC | 0x10 | 0x20 | 0x40 | 0x80)", "(0xC | 0x10 | 0x20 | 0x40)"),
            at_rule("numbers"),
        ),
        Defect(
            "oneway-send-answered",
            Subject.LEFT_TO_PYTHON,
            change(SEND_REQUEST, "request->flag != 0 || ", ""),
            at_rule("heads"),
        ),
        Defect(
            "field-that-occurs-twice-taken",
            Subject.LEFT_TO_PYTHON,
            change(
                SEND_REQUEST,
                "    if (field->at != NULL) return false;",
                "    if (field->at != NULL) return true;",
            ),
            at_rule("JSON spellings"),
        ),
        Defect(
            "topic-that-is-closed-to-producers-taken",
            Subject.LEFT_TO_PYTHON,
            change(
                PLAIN_SENDS,
                "closed != NULL && PySet_Contains(closed, queue->topic_text) == 0;",
                "closed != NULL;",
            ),
            at_rule("topics"),
        ),
        Defect(
            "queue-that-the-topic-has-lost-taken",
            Subject.LEFT_TO_PYTHON,
            change(
                PLAIN_SENDS,
                "    if (queue->queue_id >= write_queues && queue->queue_id >= read_queues) return false;\n",
                "",
            ),
            _LOST_QUEUE,
        ),
        Defect(
            "first-tags-instead-of-the-last",
            Subject.STORED,
            change(
                SEND_REQUEST,
                "        if (p == properties.at || p[-1] == SEPARATOR) tags =",
                "        if (tags == NULL && (p == properties.at || p[-1] == SEPARATOR)) tags =",
            ),
            at_rule("tags"),
        ),
        Defect(
            "flag-of-multiple-tags-forgotten",
            Subject.STORED,
            change(PLAIN_SENDS, " | (queue->has_multi_tags ? MULTI_TAGS : 0);", ";"),
            at_rule("topics"),
        ),
        Defect(
            "properties-not-closed",
            Subject.STORED,
            change(
                PLAIN_SENDS,
                "size_t properties_size = properties.size + (is_closed ? 0 : 1)",
                "size_t properties_size = properties.size",
            ),
            at_rule("unique keys"),
        ),
        Defect(
            "checksum-of-eight-bytes-wrong",
            Subject.STORED,
            change(
                BYTES,
                "        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;\n",
                "        crc ^= read_32(p);\n",
            ),
            at_rule("bodies"),
        ),
        Defect(
            "answer-with-the-next-offset",
            Subject.STORED,
            change(
                PLAIN_SENDS,
                "write_answer(self, request, physical_offset, queue->next_offset);",
                "write_answer(self, request, physical_offset, queue->next_offset + 1);",
            ),
            at_rule("queue ids"),
        ),
        Defect(
            "head-written-first",
            Subject.ORDER,
            change(
                PLAIN_SENDS,
                _START_OF_MESSAGE,
                "    write_32(write_32(start, (uint32_t)size), MAGIC_V1);\n" + _START_OF_MESSAGE,
            ),
            (f"{_KILLED}[rest-native]",),
        ),
        Defect(
            "queue-entry-before-its-message",
            Subject.ORDER,
            (
                Edit(PLAIN_SENDS, _WRITE_ENTRY, ""),
                Edit(PLAIN_SENDS, _WRITE_MESSAGE, _WRITE_ENTRY + _WRITE_MESSAGE),
            ),
            (f"{_KILLED}[head-native]",),
        ),
        Defect(
            "confirm-offset-before-the-entries",
            Subject.ORDER,
            change(
                PLAIN_SENDS,
                "        is_written = PyObject_SetAttr(self->log, s_position, numbers[0]) == 0;\n",
                "        is_written = PyObject_SetAttr(self->log, s_position, numbers[0]) == 0 &&\n"
                "                     PyObject_SetAttr(self->log, s_queued_until, numbers[1]) == 0;\n",
            ),
            _CONFIRMED,
        ),
        Defect(
            "first-message-of-a-run-not-counted",
            Subject.COUNTS,
            change(
                PLAIN_SENDS,
                "    for (int i = 0; i < self->sends; i++) {\n        SentMessage",
                "    for (int i = 1; i < self->sends; i++) {\n        SentMessage",
            ),
            at_rule("bodies"),
        ),
        Defect(
            "ordered-message-counted-as-a-normal-one",
            Subject.COUNTS,
            change(PLAIN_SENDS, "message->is_fifo ? s_count_fifo : s_count_message", "s_count_message"),
            at_rule("special words"),
        ),
        Defect(
            "waiting-pull-not-woken",
            Subject.COUNTS,
            change(
                PLAIN_SENDS,
                "        PyObject *done = PyObject_Call(self->mark_grown, queue->key, NULL);\n",
                "        PyObject *done = PyBool_FromLong(0);\n",
            ),
            _WAITING_PULLS,
        ),
        Defect(
            "full-disk-ignored",
            Subject.LIMITS,
            change(
                PLAIN_SENDS, "bool has_disk = disk_full == Py_False;", "bool has_disk = disk_full != NULL;"
            ),
            _FULL_DISK,
        ),
        Defect(
            "limit-of-waiting-answers-ignored",
            Subject.LIMITS,
            change(PLAIN_SENDS, "self->sends >= self->room_sends || ", ""),
            _HELD,
        ),
        Defect(
            "index-entries-beyond-what-is-reserved",
            Subject.INDEX,
            change(
                INDEX_KEYS,
                "    if (file->next_entry + count > file->last_entry) return false;\n",
                "    if (file->next_entry > file->last_entry) return false;\n",
            ),
            TEST_INDEX,
        ),
        Defect(
            "key-that-occurs-twice-indexed-twice",
            Subject.INDEX,
            change(INDEX_KEYS, "        if (!is_new) continue;\n", "        if (key.size == 0) continue;\n"),
            TEST_INDEX,
        ),
        Defect(
            "message-that-was-rolled-back-indexed",
            Subject.INDEX,
            change(
                INDEX_KEYS,
                "        if ((sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK) {\n",
                "        {\n",
            ),
            TEST_INDEX,
        ),
        Defect(
            "name-within-another-name-taken-for-a-key",
            Subject.INDEX,
            change(INDEX_KEYS, "    if (found > properties.at && found[-1] != 2) return false;\n", ""),
            TEST_INDEX,
        ),
        Defect(
            "size-of-any-value-not-checked",
            Subject.LENGTHS,
            change(DECODE_FRAME, "(size_t)(end - value.at) < value.size || ", ""),
            _MUTATIONS,
        ),
        Defect(
            "remark-longer-than-its-header-read",
            Subject.LENGTHS,
            change(DECODE_FRAME, "    if (remark_size > size - BINARY_HEAD_BYTES) return false;\n", ""),
            _MUTATIONS,
        ),
        Defect(
            "header-longer-than-its-frame-read",
            Subject.LENGTHS,
            change(DECODE_FRAME, "header_size > size - WORD_BYTES || ", ""),
            _MUTATIONS,
        ),
        Defect(
            "largest-header-ignored",
            Subject.LENGTHS,
            change(DECODE_FRAME, "header_size > max_header_size ||", ""),
            _LARGEST_HEADER,
        ),
        Defect(
            "member-that-occurs-twice-taken",
            Subject.LEFT_TO_PYTHON,
            change(
                DECODE_FRAME,
                "if (member == 0 || seen & member) return false;",
                "if (member == 0) return false;",
            ),
            _RARE_HEADERS,
        ),
        Defect(
            "message-longer-than-the-log-indexed",
            Subject.INDEX,
            change(INDEX_KEYS, "topic_at + 4 > size || size > room)", "topic_at + 4 > size)"),
            TEST_INDEX,
        ),
        Defect(
            "older-messages-with-a-key-lost",
            Subject.INDEX,
            change(INDEX_KEYS, "write_32(entry + 16, (uint32_t)previous);", "write_32(entry + 16, 0);"),
            TEST_INDEX,
        ),
    ),
    rule="subject",
    rules=tuple(Subject),
    page="docs/explanation/native-sends.md",
)
