/* Takes plain sends: reads their frames, stores their messages, writes their answers.
 *
 * Theory of operation
 * -------------------
 * `PlainSends.take` handles the frames at the beginning of what was read from a connection, up to the first one that is
 * not a plain send. It never refuses anything: a frame that Python would refuse is left to Python.
 *
 * 1. A *run* begins with the first plain send. It asks `room`, FlowControl's limits, how many sends it may take. Then it
 *    reads the state of the commit log, and that of a queue when the first message of that queue comes.
 * 2. For each message, log bytes and queue entry are written into the memory maps, in Python's order: the message's
 *    first eight bytes last, then the entry. What a kill leaves at any point is what it leaves of Python's append.
 * 3. The run ends after MAX_RUN_SENDS, so that the caller can look at its clock, or at the first other frame. The
 *    positions of log and queues are written back, `queued_until` last: a checkpoint in another thread trusts it.
 *
 * The GIL is held throughout, and no code of the broker runs between the first look at the log and the last position
 * that is written back. So nothing moves the log, closes a queue or lowers a limit during a run.
 *
 * When the log's file, the queue's file or their reserved space is used up, the frame is left to Python, which makes
 * room; the next run goes on from there.
 *
 * Rules
 * -----
 * Each line names a rule of the broker that this folder repeats, and the Python function that has it. A function that
 * changes has to be compared with the C code: gateway/tests/test_native_rules.py notices.
 *
 * rule: sizes of frames                          remoting.frame_connection:FrameConnection._feed
 * rule: header word, serialisation, body         codec.command:decode_frame
 * rule: binary header                            codec.command:_decode_binary_frame
 * rule: binary header, members                   codec.command:_decode_binary
 * rule: binary header, fields                    codec.command:_binary_ext
 * rule: fields of a send                         remoting.requests.send:SendFieldsV2
 * rule: numbers and booleans of a header         remoting.header_reader:compile_header_reader
 * rule: order of the checks, full disk           gateway.broker.requests.send_handler:SendHandler.send
 * rule: topic, queue, MULTI_TAG                  gateway.broker.requests.send_handler:SendHandler._check_request
 * rule: plain sends, unique key, counts          gateway.broker.requests.send_handler:SendHandler._send_one
 * rule: properties with a special path           gateway.broker.requests.send_handler:_needs_special_path
 * rule: properties with MSG in their names       gateway.broker.requests.send_handler:_has_special_msg_name
 * rule: a declined wait                          gateway.broker.requests.send_handler:_is_wait_declined
 * rule: the usual answer                         gateway.broker.requests.send_handler:SendHandler._encode_answer
 * rule: answers that have to wait                gateway.broker.requests.send_handler:SendHandler._answer_when_safe
 * rule: message id                               gateway.broker.messages.advertised_hosts:HostView.show
 * rule: queue of a message                       storage.store:MessageStore.append
 * rule: stored message and queue entry           storage.append:append_message
 * rule: lengths and NUL in properties            storage.append:check_message_parts
 * rule: tags code of a queue entry               storage.tags:tags_code_of
 * rule: hash of tags                             codec.hashing:java_hash
 */
#include "module.h"

#include <stdatomic.h>
#include <structmember.h>
#include <time.h>

#include "send_request.h"

#define MAX_RUN_SENDS 64 /* about 40 us of messages of 128 bytes */
#define CACHED_QUEUES 1024
#define MAX_HEADER_BYTES 65536
#define HOST_BYTES 8 /* IPv4 */
#define HEADER_BYTES 88
#define QUEUE_ENTRY_BYTES 20
#define MAX_PROPERTIES_BYTES 0x7FFF
#define MAGIC_V1 0xDAA320A7u
#define MULTI_TAGS 2
#define ANSWER_PARTS 6
#define ANSWER_VALUE_BYTES (8 + 32 + 3 * 20 + 2 + MAX_UNIQUE_KEY_BYTES + 2) /* lengths, id, numbers, key, quotes */

/* A queue as the current run sees it. The objects stay in the cache between runs; what is valid during one only, from
 * `run` on, is read again at its first message. */
typedef struct {
    uint32_t hash;
    int32_t queue_id;
    size_t topic_bytes;
    char topic[MAX_TOPIC_BYTES];
    PyObject *topic_text, *key; /* the topic, and (topic, queue id) */
    PyObject *queue;            /* the ConsumeQueue */
    PyObject *topic_part;       /* the topic as it stands in a message */
    uint64_t run;
    bool has_multi_tags;
    Py_buffer entries; /* held while the queue is among the run's */
    int64_t position, limit, next_offset;
    bool has_grown;
} CachedQueue;

/* A message of the current run, for what follows when the run ends. */
typedef struct {
    CachedQueue *queue;
    int64_t size, end;
    size_t answer_end;
    bool is_fifo;
} SentMessage;

typedef struct {
    PyObject_HEAD
    PyObject *topics, *store, *queues, *log, *stored_counts, *mark_grown, *host_view, *now_ms, *room;
    PyObject *suffix, *answer_parts;
    Py_ssize_t max_frame_bytes, max_header_bytes, max_body_bytes;
    int holds_answers;
    unsigned long long frames;
    CachedQueue *cache[CACHED_QUEUES]; /* by hash; a queue replaces an earlier one of its place */
    /* The current run. */
    uint64_t run;
    bool is_taking, is_running; /* within `take`; and with the state of the log read */
    bool is_collector_on;       /* when the run began */
    int sends, queue_count;
    int64_t room_sends;
    Py_buffer log_bytes;
    int64_t base, position, limit, store_timestamp;
    uint8_t born_host[HOST_BYTES], store_host[HOST_BYTES];
    CachedQueue *run_queues[MAX_RUN_SENDS];
    SentMessage sent[MAX_RUN_SENDS];
    SendRequest request;
    uint8_t *answers; /* room for MAX_RUN_SENDS of them */
    size_t answers_size;
} PlainSends;

static PyObject *s_table, *s_closed_to_producers, *s_disk_full, *s_buffer, *s_base, *s_position, *s_limit, *s_queued_until,
    *s_next_offset, *s_recently_used, *s_topic_part, *s_write_queue_nums, *s_read_queue_nums, *s_topic_filter_type, *s_state,
    *s_born_host, *s_store_host, *s_count_message, *s_count_fifo;

/* -- attributes --------------------------------------------------------------------------------------------------- */

static bool get_number(PyObject *object, PyObject *name, int64_t *number) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) return false;
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return !(*number == -1 && PyErr_Occurred());
}

static bool get_writable(PyObject *object, Py_buffer *view) {
    PyObject *buffer = PyObject_GetAttr(object, s_buffer);
    bool is_held = buffer != NULL && PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE) == 0;
    Py_XDECREF(buffer);
    return is_held;
}

/* Copy an IPv4 host of a HostView; false for IPv6. */
static bool get_host(PyObject *view, PyObject *name, uint8_t *host) {
    PyObject *packed = PyObject_GetAttr(view, name);
    bool is_ipv4 = packed != NULL && PyBytes_Check(packed) && PyBytes_Size(packed) == HOST_BYTES;
    if (is_ipv4) memcpy(host, PyBytes_AsString(packed), HOST_BYTES);
    Py_XDECREF(packed);
    return is_ipv4;
}

static Span span_of(PyObject *bytes) {
    return (Span){(const uint8_t *)PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes)};
}

/* -- queues ------------------------------------------------------------------------------------------------------- */

static void free_queue(CachedQueue *queue) {
    Py_XDECREF(queue->topic_text);
    Py_XDECREF(queue->key);
    Py_XDECREF(queue->queue);
    Py_XDECREF(queue->topic_part);
    PyMem_Free(queue);
}

static CachedQueue *new_queue(uint32_t hash, Span topic, int32_t queue_id) {
    CachedQueue *queue = PyMem_Malloc(sizeof *queue);
    if (queue == NULL) return NULL;
    memset(queue, 0, sizeof *queue);
    queue->hash = hash, queue->queue_id = queue_id, queue->topic_bytes = topic.size;
    memcpy(queue->topic, topic.at, topic.size);
    queue->topic_text = PyUnicode_FromStringAndSize(queue->topic, (Py_ssize_t)topic.size);
    queue->key = queue->topic_text ? Py_BuildValue("(Oi)", queue->topic_text, (int)queue_id) : NULL;
    if (queue->key != NULL) return queue;
    free_queue(queue);
    return NULL;
}

/* Return the cached queue of a message, which is added if need be; NULL if its place is in use by this run. */
static CachedQueue *cached_queue(PlainSends *self, Span topic, int32_t queue_id) {
    uint32_t hash = 2166136261u ^ (uint32_t)queue_id;
    for (size_t i = 0; i < topic.size; i++) hash = (hash ^ topic.at[i]) * 16777619u;
    hash ^= hash >> 15;
    CachedQueue **place = &self->cache[hash % CACHED_QUEUES], *queue = *place;
    if (queue != NULL && queue->hash == hash && queue->queue_id == queue_id && queue->topic_bytes == topic.size &&
        memcmp(queue->topic, topic.at, topic.size) == 0)
        return queue;
    if (queue != NULL) {
        if (queue->run == self->run) return NULL;
        *place = NULL;
        free_queue(queue);
    }
    return *place = new_queue(hash, topic, queue_id);
}

/* True if the topic exists, takes messages from producers, and has a queue of this id. */
static bool check_topic(PlainSends *self, CachedQueue *queue) {
    PyObject *table = PyObject_GetAttr(self->topics, s_table);
    PyObject *config = table ? PyDict_GetItemWithError(table, queue->topic_text) : NULL; /* borrowed from the table */
    Py_XDECREF(table); /* which the topics keep */
    PyObject *closed = config ? PyObject_GetAttr(self->topics, s_closed_to_producers) : NULL;
    bool is_open = closed != NULL && PySet_Contains(closed, queue->topic_text) == 0;
    Py_XDECREF(closed);
    int64_t write_queues, read_queues;
    if (!is_open || !get_number(config, s_write_queue_nums, &write_queues) ||
        !get_number(config, s_read_queue_nums, &read_queues))
        return false;
    if (queue->queue_id >= write_queues && queue->queue_id >= read_queues) return false;
    PyObject *filter_type = PyObject_GetAttr(config, s_topic_filter_type);
    if (filter_type == NULL) return false;
    queue->has_multi_tags = PyUnicode_CompareWithASCIIString(filter_type, "MULTI_TAG") == 0;
    Py_DECREF(filter_type);
    return true;
}

/* Return the queue of a message, as it is in this run; NULL for one that Python has to look at. */
static CachedQueue *find_queue(PlainSends *self, Span topic, int32_t queue_id) {
    CachedQueue *cached = cached_queue(self, topic, queue_id);
    if (cached == NULL || cached->run == self->run) return cached;
    if (!check_topic(self, cached)) return NULL;
    PyObject *queue = PyDict_GetItemWithError(self->queues, cached->key); /* borrowed */
    if (queue == NULL) return NULL; /* Python creates it with its first message. */
    if (queue != cached->queue) {   /* The first one, or the topic was deleted and created again. */
        PyObject *topic_part = PyObject_GetAttr(queue, s_topic_part);
        if (topic_part == NULL || !PyBytes_Check(topic_part) || PyBytes_Size(topic_part) > MAX_TOPIC_BYTES + 1) {
            Py_XDECREF(topic_part);
            return NULL;
        }
        Py_XDECREF(cached->queue);
        Py_XDECREF(cached->topic_part);
        Py_INCREF(queue);
        cached->queue = queue, cached->topic_part = topic_part;
    }
    if (!get_number(queue, s_position, &cached->position) || !get_number(queue, s_limit, &cached->limit) ||
        !get_number(queue, s_next_offset, &cached->next_offset) || cached->position < 0)
        return NULL;
    if (cached->position >= cached->limit) return NULL; /* Before its first entry there is not even a buffer. */
    if (!get_writable(queue, &cached->entries)) return NULL;
    cached->run = self->run;
    cached->has_grown = false;
    self->run_queues[self->queue_count++] = cached; /* At most one a send, so there is a place. */
    return cached;
}

/* -- the beginning and the end of a run --------------------------------------------------------------------------- */

static bool read_clock(PlainSends *self) {
    if (self->now_ms == Py_None) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        self->store_timestamp = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
        return true;
    }
    PyObject *now_ms = PyObject_CallNoArgs(self->now_ms);
    self->store_timestamp = now_ms ? PyLong_AsLongLong(now_ms) : -1;
    Py_XDECREF(now_ms);
    return self->store_timestamp >= 0;
}

static bool ask_room(PlainSends *self, PyObject *connection) {
    self->room_sends = MAX_RUN_SENDS;
    if (self->room == Py_None) return true;
    PyObject *room = PyObject_CallFunctionObjArgs(self->room, connection, NULL);
    if (room == NULL) return false;
    self->room_sends = PyLong_AsLongLong(room);
    Py_DECREF(room);
    return self->room_sends > 0;
}

static bool read_hosts(PlainSends *self, PyObject *connection) {
    PyObject *state = PyObject_GetAttr(connection, s_state);
    PyObject *view = state ? PyDict_GetItemWithError(state, self->host_view) : NULL; /* borrowed from the state */
    bool are_ipv4 = view != NULL && get_host(view, s_born_host, self->born_host) &&
                    get_host(view, s_store_host, self->store_host);
    Py_XDECREF(state);
    return are_ipv4;
}

static void enable_collector(const PlainSends *self) {
    if (self->is_collector_on) PyGC_Enable();
}

/* Python code runs here, in `room` and `now_ms`: before the state of the log is read. Later the collector must not run, for
 * as long as the positions are not written: it calls finalizers, which are any code. */
static bool begin_run(PlainSends *self, PyObject *connection) {
    PyObject *disk_full = PyObject_GetAttr(self->store, s_disk_full);
    bool has_disk = disk_full == Py_False;
    Py_XDECREF(disk_full);
    if (!has_disk || !ask_room(self, connection) || !read_hosts(self, connection) || !read_clock(self)) return false;
    self->is_collector_on = PyGC_Disable();
    if (!get_number(self->log, s_base, &self->base) || !get_number(self->log, s_position, &self->position) ||
        !get_number(self->log, s_limit, &self->limit) || self->position < 0 || !get_writable(self->log, &self->log_bytes)) {
        enable_collector(self);
        return false;
    }
    self->run++;
    self->queue_count = 0;
    return self->is_running = true;
}

/* Write the positions back. `queued_until` comes last: a checkpoint must not cover a message without its entry.
 * All numbers are made first: if memory is short, no position is written, and the run has not been. */
static bool write_positions(PlainSends *self) {
    PyObject *numbers[2 + 2 * MAX_RUN_SENDS];
    int count = 0;
    bool is_written = true;
    if (self->sends != 0) {
        numbers[count++] = PyLong_FromLongLong(self->position);
        numbers[count++] = PyLong_FromLongLong(self->base + self->position);
    }
    for (int i = 0; i < self->queue_count; i++) {
        CachedQueue *queue = self->run_queues[i];
        PyBuffer_Release(&queue->entries);
        if (!queue->has_grown) continue;
        numbers[count++] = PyLong_FromLongLong(queue->position);
        numbers[count++] = PyLong_FromLongLong(queue->next_offset);
    }
    PyBuffer_Release(&self->log_bytes);
    for (int i = 0; i < count; i++) is_written = is_written && numbers[i] != NULL;
    if (is_written && self->sends != 0) {
        PyObject **number = numbers + 2;
        is_written = PyObject_SetAttr(self->log, s_position, numbers[0]) == 0;
        for (int i = 0; i < self->queue_count; i++) {
            CachedQueue *queue = self->run_queues[i];
            if (!queue->has_grown) continue;
            is_written = is_written && PyObject_SetAttr(queue->queue, s_position, *number++) == 0 &&
                         PyObject_SetAttr(queue->queue, s_next_offset, *number++) == 0 &&
                         PyObject_SetAttr(queue->queue, s_recently_used, Py_True) == 0;
        }
        is_written = is_written && PyObject_SetAttr(self->log, s_queued_until, numbers[1]) == 0;
    }
    for (int i = 0; i < count; i++) Py_XDECREF(numbers[i]);
    return is_written;
}

/* Python code runs here, after all positions are written. */
static bool count_messages(PlainSends *self) {
    for (int i = 0; i < self->queue_count; i++) {
        CachedQueue *queue = self->run_queues[i];
        if (!queue->has_grown) continue;
        PyObject *done = PyObject_Call(self->mark_grown, queue->key, NULL);
        if (done == NULL) return false;
        Py_DECREF(done);
    }
    for (int i = 0; i < self->sends; i++) {
        SentMessage *message = &self->sent[i];
        PyObject *count = PyObject_GetItem(self->stored_counts, message->queue->topic_text);
        PyObject *size = count ? PyLong_FromLongLong(message->size) : NULL;
        PyObject *method = message->is_fifo ? s_count_fifo : s_count_message;
        PyObject *done = size ? PyObject_CallMethodObjArgs(count, method, size, NULL) : NULL;
        Py_XDECREF(count);
        Py_XDECREF(size);
        if (done == NULL) return false;
        Py_DECREF(done);
    }
    return true;
}

/* -- one send ----------------------------------------------------------------------------------------------------- */

static uint8_t *write_hex(uint8_t *to, const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        *to++ = (uint8_t)"0123456789ABCDEF"[bytes[i] >> 4];
        *to++ = (uint8_t)"0123456789ABCDEF"[bytes[i] & 15];
    }
    return to;
}

static uint8_t *write_decimal(uint8_t *to, int64_t number) { /* not negative */
    uint8_t digits[20];
    int count = 0;
    do digits[count++] = (uint8_t)('0' + number % 10);
    while (number /= 10);
    while (count) *to++ = digits[--count];
    return to;
}

static uint8_t *write_part(PlainSends *self, uint8_t *to, Py_ssize_t number) {
    Span part = span_of(PyTuple_GetItem(self->answer_parts, number));
    return write_bytes(to, part.at, part.size);
}

/* The answer is the parts with the values between them: id, queue, offset, unique key, opaque. */
static void write_answer(PlainSends *self, const SendRequest *request, int64_t physical_offset, int64_t queue_offset) {
    uint8_t *start = self->answers + self->answers_size, *to = start + 8, offset_bytes[8];
    write_64(offset_bytes, (uint64_t)physical_offset);
    to = write_part(self, to, 0);
    *to++ = '"';
    to = write_hex(to, self->store_host, HOST_BYTES);
    to = write_hex(to, offset_bytes, sizeof offset_bytes);
    *to++ = '"';
    to = write_decimal(write_part(self, to, 1), request->queue_id);
    to = write_decimal(write_part(self, to, 2), queue_offset);
    to = write_part(self, to, 3);
    *to++ = '"';
    to = write_bytes(to, request->unique_key.at, request->unique_key.size);
    *to++ = '"';
    to = write_decimal(write_part(self, to, 4), request->opaque);
    to = write_part(self, to, 5);
    uint32_t header_size = (uint32_t)(to - start - 8);
    write_32(write_32(start, header_size + 4), header_size);
    self->answers_size += header_size + 8;
}

/* Write the message at the end of the log. `size` bytes are free there. */
static void write_message(PlainSends *self, const SendRequest *request, const CachedQueue *queue, size_t size,
                          size_t properties_size) {
    uint8_t *start = (uint8_t *)self->log_bytes.buf + self->position, *to = start + 8, head[8];
    Span topic_part = span_of(queue->topic_part), suffix = span_of(self->suffix), properties = request->properties;
    uint32_t sys_flag = (uint32_t)request->sys_flag | (queue->has_multi_tags ? MULTI_TAGS : 0);
    to = write_32(to, crc32_of(request->body) & 0x7FFFFFFF);
    to = write_32(to, (uint32_t)request->queue_id);
    to = write_32(to, (uint32_t)request->message_flag);
    to = write_64(to, (uint64_t)queue->next_offset);
    to = write_64(to, (uint64_t)(self->base + self->position));
    to = write_32(to, sys_flag);
    to = write_64(to, (uint64_t)request->born_timestamp);
    to = write_bytes(to, self->born_host, HOST_BYTES);
    to = write_64(to, (uint64_t)self->store_timestamp);
    to = write_bytes(to, self->store_host, HOST_BYTES);
    to = write_32(to, (uint32_t)request->reconsume_times);
    to = write_64(to, 0); /* no prepared transaction */
    to = write_32(to, (uint32_t)request->body.size);
    to = write_bytes(to, request->body.at, request->body.size);
    to = write_bytes(to, topic_part.at, topic_part.size);
    to = write_16(to, (uint32_t)properties_size);
    to = write_bytes(to, properties.at, properties.size);
    if (properties_size > properties.size + suffix.size) *to++ = '\x02';
    write_bytes(to, suffix.at, suffix.size);
    /* Size and magic last, and no compiler may move them up: a process killed in between leaves a size of zero, which
     * ends the log. */
    write_32(write_32(head, (uint32_t)size), MAGIC_V1);
    atomic_thread_fence(memory_order_release);
    memcpy(start, head, sizeof head);
    atomic_thread_fence(memory_order_release); /* The entry comes after its message. */
}

/* Take the frame whose header begins at `frame`; false leaves it to Python, and then nothing has changed. */
static bool take_frame(PlainSends *self, PyObject *connection, const uint8_t *frame, size_t header_size,
                       const uint8_t *frame_end, bool is_binary) {
    SendRequest *request = &self->request;
    if (!read_send_request(request, frame, header_size, frame_end, is_binary, !self->holds_answers)) return false;
    /* Only now: most frames that are left to Python cost it nothing but the look at their code. */
    if (!self->is_running && !begin_run(self, connection)) return false;
    if (self->sends >= self->room_sends || (int64_t)request->body.size > self->max_body_bytes) return false;
    Span properties = request->properties;
    bool is_closed = properties.size > 0 && properties.at[properties.size - 1] == 2;
    size_t properties_size = properties.size + (is_closed ? 0 : 1) + (size_t)PyBytes_Size(self->suffix);
    if (properties_size > MAX_PROPERTIES_BYTES) return false;
    CachedQueue *queue = find_queue(self, request->topic, request->queue_id);
    if (queue == NULL || queue->position >= queue->limit || queue->position + QUEUE_ENTRY_BYTES > queue->entries.len)
        return false;
    size_t size = HEADER_BYTES + request->body.size + (size_t)PyBytes_Size(queue->topic_part) + 2 + properties_size;
    int64_t end = self->position + (int64_t)size;
    if (end > self->limit || end > self->log_bytes.len) return false;

    int64_t physical_offset = self->base + self->position;
    write_message(self, request, queue, size, properties_size);
    uint8_t *entry = (uint8_t *)queue->entries.buf + queue->position;
    write_64(write_32(write_64(entry, (uint64_t)physical_offset), (uint32_t)size), (uint64_t)(int64_t)request->tags_code);
    write_answer(self, request, physical_offset, queue->next_offset);
    self->position = end;
    queue->position += QUEUE_ENTRY_BYTES;
    queue->next_offset++;
    queue->has_grown = true;
    self->sent[self->sends++] = (SentMessage){queue, (int64_t)size, self->base + end, self->answers_size, request->is_fifo};
    return true;
}

/* -- runs --------------------------------------------------------------------------------------------------------- */

/* Take frames from `start` on; return the end of the last one. */
static Py_ssize_t take_frames(PlainSends *self, PyObject *connection, const Py_buffer *data, Py_ssize_t start) {
    const uint8_t *bytes = data->buf;
    Py_ssize_t position = start;
    while (self->sends < MAX_RUN_SENDS && data->len - position >= 8) {
        uint32_t length = read_32(bytes + position), word = read_32(bytes + position + 4), header_size = word & 0xFFFFFF;
        Py_ssize_t frame_size = (Py_ssize_t)length + 4; /* 64 bits wide: see `init_plain_sends` */
        if (frame_size < 8 || frame_size > self->max_frame_bytes || frame_size > data->len - position) break;
        if (word >> 24 > 1 || header_size > MAX_HEADER_BYTES || header_size > self->max_header_bytes ||
            header_size > length - 4)
            break;
        const uint8_t *header = bytes + position + 8, *end = bytes + position + frame_size;
        if (!take_frame(self, connection, header, header_size, end, word >> 24 == 1)) break;
        position += frame_size;
    }
    return position;
}

/* With answers that have to wait: the list of them, and the ends of their messages in the log. */
static PyObject *held_answers(PlainSends *self, Py_ssize_t position) {
    PyObject *answers = PyList_New(self->sends), *ends = PyList_New(self->sends);
    size_t start = 0;
    for (int i = 0; answers && ends && i < self->sends; i++) {
        size_t end = self->sent[i].answer_end;
        PyObject *answer = PyBytes_FromStringAndSize((const char *)self->answers + start, (Py_ssize_t)(end - start));
        PyObject *log_end = answer ? PyLong_FromLongLong(self->sent[i].end) : NULL;
        start = end;
        if (log_end == NULL) {
            Py_XDECREF(answer);
            Py_CLEAR(answers);
            break;
        }
        PyList_SetItem(answers, i, answer); /* takes the reference */
        PyList_SetItem(ends, i, log_end);
    }
    if (answers && ends) return Py_BuildValue("nNN", position, answers, ends);
    Py_XDECREF(answers);
    Py_XDECREF(ends);
    return NULL;
}

static PyObject *take_run(PlainSends *self, PyObject *connection, const Py_buffer *data, Py_ssize_t start) {
    self->sends = 0;
    self->answers_size = 0;
    Py_ssize_t end = take_frames(self, connection, data, start);
    /* A look-up that failed has left its frame to Python, which meets the same error and reports it. An interrupt came
     * from `room` or `now_ms`, before anything was written. */
    bool is_interrupted = PyErr_Occurred() && self->sends == 0 && !PyErr_ExceptionMatches(PyExc_Exception);
    if (!is_interrupted) PyErr_Clear();
    bool is_written = true;
    if (self->is_running) {
        self->is_running = false;
        is_written = write_positions(self);
        enable_collector(self);
    }
    if (!is_written || is_interrupted) return NULL;
    if (self->sends == 0) Py_RETURN_NONE;
    self->frames += (unsigned long long)self->sends;
    if (!count_messages(self)) return NULL;
    if (self->holds_answers) return held_answers(self, end);
    return Py_BuildValue("ny#", end, self->answers, (Py_ssize_t)self->answers_size);
}

PyDoc_STRVAR(take_doc, "take(connection, buffer, position)\n--\n\n"
                       "Take the plain sends that begin at a position. Return None if there is none there, otherwise the\n"
                       "position after the last one and the answers; with holds_answers a list of them, and a list of the\n"
                       "physical offsets at which their messages end.");

static PyObject *plain_sends_take(PyObject *object, PyObject *args) {
    PlainSends *self = (PlainSends *)object;
    PyObject *connection;
    Py_buffer data;
    Py_ssize_t start;
    if (!PyArg_ParseTuple(args, "Oy*n", &connection, &data, &start)) return NULL;
    if (self->answers == NULL || self->is_taking || start < 0 || start > data.len) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "take: not set up, called by itself, or a position beyond the buffer");
        return NULL;
    }
    self->is_taking = true;
    PyObject *taken = take_run(self, connection, &data, start);
    self->is_taking = false;
    PyBuffer_Release(&data);
    return taken;
}

/* -- the type ----------------------------------------------------------------------------------------------------- */

#define OBJECTS(self)                                                                                                  \
    &(self)->topics, &(self)->store, &(self)->queues, &(self)->log, &(self)->stored_counts, &(self)->mark_grown,      \
        &(self)->host_view, &(self)->now_ms, &(self)->room, &(self)->suffix, &(self)->answer_parts

static bool allocate_answers(PlainSends *self) {
    size_t answer_size = ANSWER_VALUE_BYTES;
    if (PyTuple_Size(self->answer_parts) != ANSWER_PARTS) {
        PyErr_SetString(PyExc_ValueError, "answer_parts: six parts");
        return false;
    }
    for (Py_ssize_t i = 0; i < ANSWER_PARTS; i++) {
        PyObject *part = PyTuple_GetItem(self->answer_parts, i);
        if (!PyBytes_Check(part)) {
            PyErr_SetString(PyExc_TypeError, "answer_parts: bytes");
            return false;
        }
        answer_size += (size_t)PyBytes_Size(part);
    }
    self->answers = PyMem_Malloc(answer_size * MAX_RUN_SENDS);
    if (self->answers == NULL) PyErr_NoMemory();
    return self->answers != NULL;
}

static int plain_sends_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    PlainSends *self = (PlainSends *)object;
    static char *names[] = {"topics", "store", "queues", "log", "stored_counts", "mark_grown", "host_view", "now_ms",
                            "room", "suffix", "answer_parts", "max_frame_bytes", "max_header_bytes", "max_body_bytes",
                            "holds_answers", NULL};
    if (self->answers != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "already set up");
        return -1;
    }
    PyObject *queues, *suffix, *parts, *borrowed[8];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OOOOOOSO!nnnp", names, &borrowed[0], &borrowed[1], &PyDict_Type,
                                     &queues, &borrowed[2], &borrowed[3], &borrowed[4], &borrowed[5], &borrowed[6],
                                     &borrowed[7], &suffix, &PyTuple_Type, &parts, &self->max_frame_bytes,
                                     &self->max_header_bytes, &self->max_body_bytes, &self->holds_answers))
        return -1;
    PyObject *values[] = {borrowed[0], borrowed[1], queues,      borrowed[2], borrowed[3], borrowed[4],
                          borrowed[5], borrowed[6], borrowed[7], suffix,      parts};
    PyObject **places[] = {OBJECTS(self)};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        Py_INCREF(values[i]);
        PyObject *earlier = *places[i];
        *places[i] = values[i];
        Py_XDECREF(earlier); /* of an __init__ that failed */
    }
    return allocate_answers(self) ? 0 : -1;
}

static int plain_sends_traverse(PyObject *object, visitproc visit, void *arg) {
    PlainSends *self = (PlainSends *)object;
    PyObject **places[] = {OBJECTS(self)};
    Py_VISIT(Py_TYPE(object));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) Py_VISIT(*places[i]);
    for (int i = 0; i < CACHED_QUEUES; i++)
        if (self->cache[i] != NULL) Py_VISIT(self->cache[i]->queue);
    return 0;
}

static int plain_sends_clear(PyObject *object) {
    PlainSends *self = (PlainSends *)object;
    PyObject **places[] = {OBJECTS(self)};
    PyMem_Free(self->answers); /* First: without it, `take` does nothing any more. */
    self->answers = NULL;
    for (int i = 0; i < CACHED_QUEUES; i++) {
        CachedQueue *queue = self->cache[i];
        self->cache[i] = NULL;
        if (queue != NULL) free_queue(queue);
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) Py_CLEAR(*places[i]);
    return 0;
}

static void plain_sends_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    plain_sends_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {{"take", plain_sends_take, METH_VARARGS, take_doc}, {NULL, NULL, 0, NULL}};

static PyMemberDef members[] = {
    {"frames", T_ULONGLONG, offsetof(PlainSends, frames), READONLY, "The number of frames taken."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, PyType_GenericNew},       {Py_tp_init, plain_sends_init},   {Py_tp_traverse, plain_sends_traverse},
    {Py_tp_clear, plain_sends_clear},     {Py_tp_dealloc, plain_sends_dealloc}, {Py_tp_methods, methods},
    {Py_tp_members, members},             {Py_tp_doc, "Takes the plain sends of the connections of one broker."},
    {0, NULL},
};

static PyType_Spec spec = {
    "rocketmq_native.PlainSends", sizeof(PlainSends), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};

_Static_assert(sizeof(Py_ssize_t) >= 8, "sizes of frames are added without looking for an overflow");

bool init_plain_sends(PyObject *module) {
    static const struct {
        PyObject **name;
        const char *text;
    } interned[] = {
        {&s_table, "table"},
        {&s_closed_to_producers, "closed_to_producers"},
        {&s_disk_full, "disk_full"},
        {&s_buffer, "buffer"},
        {&s_base, "base"},
        {&s_position, "position"},
        {&s_limit, "limit"},
        {&s_queued_until, "queued_until"},
        {&s_next_offset, "next_offset"},
        {&s_recently_used, "recently_used"},
        {&s_topic_part, "topic_part"},
        {&s_write_queue_nums, "write_queue_nums"},
        {&s_read_queue_nums, "read_queue_nums"},
        {&s_topic_filter_type, "topic_filter_type"},
        {&s_state, "state"},
        {&s_born_host, "born_host"},
        {&s_store_host, "store_host"},
        {&s_count_message, "count_message"},
        {&s_count_fifo, "count_fifo"},
    };
    for (size_t i = 0; i < sizeof interned / sizeof *interned; i++)
        if ((*interned[i].name = PyUnicode_InternFromString(interned[i].text)) == NULL) return false;
    prepare_crc32();
    PyObject *type = PyType_FromSpec(&spec);
    bool is_added = type != NULL && PyModule_AddObjectRef(module, "PlainSends", type) == 0;
    Py_XDECREF(type);
    return is_added;
}
