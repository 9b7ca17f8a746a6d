/* Key indexing: hashes the keys of stored messages and adds them to an index file.
 *
 * `MessageIndex` in storage/index.py stays the master of files, headers and order. It calls `index_messages` for messages
 * that lie one after another in one log file, and goes on itself where this stops: at a message of another layout, at text
 * that is not ASCII, at a property's name within another one, at many keys, and at the end of what is reserved.
 *
 * Nothing here calls Python between the first and the last byte, so the GIL is held throughout.
 *
 * rule: the common layout of a message    storage.index_keys:parse_common_message
 * rule: the hashes of a message, and their order    storage.index_keys:key_hashes
 * rule: a property's value    storage.index_keys:_property
 * rule: Java's hash, not negative    codec.hashing:index_hash
 * rule: an entry and its slot    storage.index:IndexFile.try_add_keys
 * rule: what a message counts    storage.index:_extra_cost
 */
#include "module.h"

#include "bytes.h"
#include "index_keys.h"

enum {
    BODY_AT = 88,
    SMALLEST_MESSAGE = BODY_AT + 4, /* two lengths, no topic and no properties */
    INDEX_HEADER_BYTES = 40,
    SLOT_BYTES = 4,
    ENTRY_BYTES = 20,
    MAX_KEYS = 32, /* of one message; Python indexes more */
};
#define MAGIC_V1 0xDAA320A7u
#define V6_HOSTS 0x30u
#define TRANSACTION_MASK 0xCu
#define TRANSACTION_ROLLBACK 0xCu

static int64_t read_long(const uint8_t *p) { return (int64_t)((uint64_t)read_32(p) << 32 | read_32(p + 4)); }

/* Continue Java's hash with ASCII text. */
static uint32_t hash_more(uint32_t hash, Span text) {
    for (size_t i = 0; i < text.size; i++) hash = hash * 31 + text.at[i];
    return hash;
}

static uint32_t positive(uint32_t hash) {
    if (hash & 0x80000000u) hash = 0u - hash; /* the smallest number stays what it is */
    return hash == 0x80000000u ? 0 : hash;
}

/* Find the value of a property; empty without one. Return false where Python must search exactly. */
static bool find_value(Span properties, const char *start, size_t start_size, Span *value) {
    *value = (Span){properties.at, 0};
    const uint8_t *found = find_text(properties, properties.at, start, start_size);
    if (found == NULL) return true;
    if (found > properties.at && found[-1] != 2) return false;
    const uint8_t *at = found + start_size, *end = properties.at + properties.size;
    const uint8_t *stop = at < end ? memchr(at, 2, (size_t)(end - at)) : NULL;
    *value = (Span){at, (size_t)((stop ? stop : end) - at)};
    return is_ascii(*value);
}
#define FIND_VALUE(properties, name, value) find_value(properties, name "\x01", sizeof name, value)

/* Hash the keys of a message into `hashes`, which has room for MAX_KEYS + 2. Return their number, -1 for Python. */
static int hash_keys(Span topic, Span properties, Py_ssize_t max_keys, uint32_t *hashes) {
    Span unique, keys, tags, seen[MAX_KEYS];
    int count = 0, seen_count = 0;
    if (!is_ascii(topic) || !FIND_VALUE(properties, "UNIQ_KEY", &unique) || !FIND_VALUE(properties, "KEYS", &keys) ||
        !FIND_VALUE(properties, "TAGS", &tags))
        return -1;
    uint32_t start = hash_more(0, topic) * 31 + '#';
    if (unique.size) hashes[count++] = positive(hash_more(start, unique));
    for (size_t from = 0; from < keys.size && seen_count < max_keys;) {
        const uint8_t *at = keys.at + from, *space = memchr(at, ' ', keys.size - from);
        Span key = {at, space ? (size_t)(space - at) : keys.size - from};
        from += key.size + 1;
        bool is_new = key.size > 0;
        for (int i = 0; is_new && i < seen_count; i++)
            is_new = seen[i].size != key.size || memcmp(seen[i].at, key.at, key.size);
        if (!is_new) continue;
        if (seen_count == MAX_KEYS) return -1;
        seen[seen_count++] = key;
        hashes[count++] = positive(hash_more(start, key));
    }
    if (tags.size) hashes[count++] = positive(hash_more(hash_more(start, (Span){(const uint8_t *)"T#", 2}), tags));
    return count;
}

typedef struct {
    uint8_t *bytes;
    int64_t slots, next_entry, last_entry, begin_ms, end_ms, slots_used, end_offset;
} IndexFile;

/* Add the keys of a message; false where the file has no room for all of them, or the time is out of any range. */
static bool add_keys(IndexFile *file, const uint32_t *hashes, int count, int64_t offset, int64_t stored_ms) {
    int64_t age_ms;
    if (file->next_entry + count > file->last_entry) return false;
    if (__builtin_sub_overflow(stored_ms, file->begin_ms, &age_ms)) return false;
    int64_t seconds = age_ms < 0 ? 0 : age_ms / 1000;
    if (seconds > INT32_MAX) seconds = INT32_MAX;
    uint8_t *entry = file->bytes + INDEX_HEADER_BYTES + file->slots * SLOT_BYTES + file->next_entry * ENTRY_BYTES;
    for (int i = 0; i < count; i++, entry += ENTRY_BYTES) {
        uint8_t *slot = file->bytes + INDEX_HEADER_BYTES + (int64_t)hashes[i] % file->slots * SLOT_BYTES;
        int64_t previous = (int32_t)read_32(slot);
        if (previous <= 0 || previous > file->next_entry) previous = 0, file->slots_used++;
        write_32(entry, hashes[i]);
        write_64(entry + 4, (uint64_t)offset);
        write_32(entry + 12, (uint32_t)seconds);
        write_32(entry + 16, (uint32_t)previous);
        write_32(slot, (uint32_t)file->next_entry++);
    }
    file->end_offset = offset;
    if (stored_ms > file->end_ms) file->end_ms = stored_ms;
    return true;
}

/* Index the messages in `log` up to `limit`; return what they count, and add the bytes that they take to `taken`. */
static Py_ssize_t index_log(const uint8_t *log, int64_t room, int64_t offset, Py_ssize_t limit, Py_ssize_t max_keys,
                            IndexFile *file, int64_t *taken) {
    Py_ssize_t indexed = 0;
    uint32_t hashes[MAX_KEYS + 2];
    while (indexed < limit && room >= SMALLEST_MESSAGE) {
        int64_t size = read_32(log), topic_at = (int64_t)BODY_AT + read_32(log + 84);
        uint32_t sys_flag = read_32(log + 36);
        if (read_32(log + 4) != MAGIC_V1 || read_long(log + 28) != offset || sys_flag & V6_HOSTS ||
            topic_at + 4 > size || size > room)
            break;
        int64_t properties_at = topic_at + 3 + log[topic_at];
        if (properties_at > size || properties_at + read_16(log + properties_at - 2) != size) break;
        if ((sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK) {
            Span topic = {log + topic_at + 1, (size_t)(properties_at - topic_at - 3)};
            Span properties = {log + properties_at, (size_t)(size - properties_at)};
            int count = hash_keys(topic, properties, max_keys, hashes);
            if (count < 0 || !add_keys(file, hashes, count, offset, read_long(log + 56))) break;
            indexed += (Py_ssize_t)(properties.size >> 9) + (count >> 3);
        }
        indexed++;
        log += size, room -= size, offset += size, *taken += size;
    }
    return indexed;
}

PyObject *index_messages(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer log, index;
    long long position, end, offset, slots, next_entry, last_entry, begin_ms, end_ms, slots_used, end_offset;
    Py_ssize_t limit, max_keys;
    if (!PyArg_ParseTuple(arguments, "y*LLLnnw*LLLLLLL", &log, &position, &end, &offset, &limit, &max_keys, &index, &slots,
                          &next_entry, &last_entry, &begin_ms, &end_ms, &slots_used, &end_offset))
        return NULL;
    PyObject *result = NULL;
    /* Each number that leads into memory is checked here; what follows stays within these bounds. */
    if (position < 0 || end < position || end > log.len || slots < 1 || slots > INT32_MAX || next_entry < 1 ||
        next_entry > INT32_MAX || last_entry > INT32_MAX ||
        (last_entry > 0 && INDEX_HEADER_BYTES + slots * SLOT_BYTES + last_entry * ENTRY_BYTES > index.len)) {
        PyErr_SetString(PyExc_ValueError, "a position is outside of its file");
    } else {
        IndexFile file = {index.buf, slots, next_entry, last_entry, begin_ms, end_ms, slots_used, end_offset};
        int64_t taken = 0;
        Py_ssize_t indexed = index_log((const uint8_t *)log.buf + position, end - position, offset, limit, max_keys, &file,
                                       &taken);
        result = Py_BuildValue("(nLLLLL)", indexed, (long long)taken, (long long)file.next_entry, (long long)file.end_ms,
                               (long long)file.slots_used, (long long)file.end_offset);
    }
    PyBuffer_Release(&log);
    PyBuffer_Release(&index);
    return result;
}
