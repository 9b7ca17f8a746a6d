/* Decodes a frame of SEND_MESSAGE_V2 and checks all of it that needs no broker.
 *
 * Each function returns false for whatever is not the usual case. That is never an error: Python reads the same frame
 * again and decides. So a condition here may be narrower than Python's, and must never be wider. The rules are listed
 * in plain_sends.c.
 */
#include "send_request.h"

#define SEND_MESSAGE_V2 310
#define BINARY_HEAD_BYTES 21 /* code, language, version, opaque, flag, size of the remark, size of the fields */
#define SEPARATOR '\x02'

/* System flags: half messages and their ends, IPv6 hosts, and batches have forms of their own. */
#define UNUSUAL_SYS_FLAGS (0xC | 0x10 | 0x20 | 0x40 | 0x80)

/* -- numbers ------------------------------------------------------------------------------------------------------ */

/* At most `max_digits` digits and nothing else: so many are in range whatever they are. */
static bool read_number(Span text, size_t max_digits, int64_t *number) {
    if (text.at == NULL || text.size == 0 || text.size > max_digits) return false;
    int64_t value = 0;
    for (size_t i = 0; i < text.size; i++) {
        unsigned digit = (unsigned)text.at[i] - '0';
        if (digit > 9) return false;
        value = value * 10 + digit;
    }
    *number = value;
    return true;
}

static bool read_int(Span text, int32_t *number) {
    int64_t value;
    if (!read_number(text, 9, &value)) return false;
    *number = (int32_t)value;
    return true;
}

static bool read_optional_int(Span text, int32_t *number) {
    *number = 0;
    return text.at == NULL || read_int(text, number);
}

/* -- headers ------------------------------------------------------------------------------------------------------ */

static bool set_field(SendRequest *request, Span name, Span value) {
    if (name.size != 1 || name.at[0] < 'a' || name.at[0] > 'z') return name.size != 0; /* no field of a send */
    Span *field = &request->fields[name.at[0] - 'a'];
    if (field->at != NULL) return false; /* Twice: Python knows which one counts. */
    *field = value;
    return true;
}

static bool decode_binary(SendRequest *request, const uint8_t *header, size_t size) {
    if (size < BINARY_HEAD_BYTES) return false;
    request->code = (int16_t)read_16(header);
    if (request->code != SEND_MESSAGE_V2) return false; /* Early, because every other request comes by here. */
    request->opaque = (int32_t)read_32(header + 5);
    request->flag = (int32_t)read_32(header + 9);
    if (read_32(header + 13) != 0 || read_32(header + 17) != size - BINARY_HEAD_BYTES) return false;
    const uint8_t *p = header + BINARY_HEAD_BYTES, *end = header + size;
    while (p < end) {
        /* Two bytes for the size of the name, the name, four for the size of the value, the value. Each size is
         * compared with the bytes that are left, in a form that cannot overflow. */
        if (end - p < 2) return false;
        Span name = {p + 2, read_16(p)};
        if ((size_t)(end - name.at) < name.size + 4) return false;
        Span value = {name.at + name.size + 4, read_32(name.at + name.size)};
        if ((size_t)(end - value.at) < value.size) return false;
        if (!set_field(request, name, value)) return false;
        p = value.at + value.size;
    }
    return true;
}

size_t read_escape(const uint8_t *p, const uint8_t *end, uint8_t *character) {
    if (end - p < 2) return 0;
    switch (p[1]) {
    case '"': case '\\': case '/': *character = p[1]; return 2;
    case 'b': *character = '\b'; return 2;
    case 'f': *character = '\f'; return 2;
    case 'n': *character = '\n'; return 2;
    case 'r': *character = '\r'; return 2;
    case 't': *character = '\t'; return 2;
    case 'u': break;
    default: return 0;
    }
    /* ASCII characters only; the separators of properties come as \u0001 and \u0002. */
    if (end - p < 6 || p[2] != '0' || p[3] != '0' || p[4] < '0' || p[4] > '7') return 0;
    unsigned low = p[5];
    if (low >= '0' && low <= '9') low -= '0';
    else if (low >= 'a' && low <= 'f') low -= 'a' - 10;
    else if (low >= 'A' && low <= 'F') low -= 'A' - 10;
    else return 0;
    *character = (uint8_t)((unsigned)(p[4] - '0') << 4 | low);
    return 6;
}

/* Read the JSON text after the quote before `p`. Return the end of its closing quote, NULL for what Python reads. */
static const uint8_t *read_json_text(SendRequest *request, const uint8_t *p, const uint8_t *end, Span *text) {
    const uint8_t *start = p;
    while (p < end && *p != '"' && *p != '\\') {
        if (*p < 0x20 || *p >= 0x80) return NULL;
        p++;
    }
    if (p >= end) return NULL;
    if (*p == '"') { /* Without escapes it is used where it lies. */
        *text = (Span){start, (size_t)(p - start)};
        return p + 1;
    }
    uint8_t *copy = request->unescaped + request->unescaped_size, *to = copy;
    /* The copy is never longer than the escaped text, which ends before `end`. */
    if (UNESCAPED_BYTES - request->unescaped_size < (size_t)(end - start)) return NULL;
    to = write_bytes(to, start, (size_t)(p - start));
    while (p < end && *p != '"') {
        if (*p < 0x20 || *p >= 0x80) return NULL;
        if (*p != '\\') {
            *to++ = *p++;
            continue;
        }
        size_t escape_size = read_escape(p, end, to);
        if (escape_size == 0) return NULL;
        p += escape_size, to++;
    }
    if (p >= end) return NULL;
    request->unescaped_size = (size_t)(to - request->unescaped);
    *text = (Span){copy, (size_t)(to - copy)};
    return p + 1;
}

/* Read a quoted JSON text at `p`, which may be NULL after an earlier failure, or at `end`. */
static const uint8_t *read_json_quoted(SendRequest *request, const uint8_t *p, const uint8_t *end, Span *text) {
    if (p == NULL || p >= end || *p != '"') return NULL;
    return read_json_text(request, p + 1, end, text);
}

static const uint8_t *skip_character(const uint8_t *p, const uint8_t *end, char character) {
    return p != NULL && p < end && *p == (uint8_t)character ? p + 1 : NULL;
}

static const uint8_t *read_json_number(const uint8_t *p, const uint8_t *end, int32_t *number) {
    if (p == NULL) return NULL;
    const uint8_t *start = p;
    while (p < end && *p >= '0' && *p <= '9') p++;
    if (p - start > 1 && *start == '0') return NULL; /* not a JSON number */
    int64_t value;
    if (!read_number((Span){start, (size_t)(p - start)}, 10, &value) || value > INT32_MAX) return NULL;
    *number = (int32_t)value;
    return p;
}

static const uint8_t *read_ext_fields(SendRequest *request, const uint8_t *p, const uint8_t *end) {
    p = skip_character(p, end, '{');
    if (p == NULL || p >= end) return NULL;
    if (*p == '}') return p + 1;
    for (;;) {
        Span name, value;
        p = read_json_quoted(request, p, end, &name);
        p = read_json_quoted(request, skip_character(p, end, ':'), end, &value);
        if (p == NULL || p >= end || !set_field(request, name, value)) return NULL;
        if (*p == '}') return p + 1;
        if (*p++ != ',') return NULL;
    }
}

/* The form that clients write: no white space, the usual members in any order, each once, numbers as numbers. */
static bool decode_json(SendRequest *request, const uint8_t *header, size_t size) {
    enum { CODE = 1, OPAQUE = 2, FLAG = 4, VERSION = 8, LANGUAGE = 16, EXT_FIELDS = 32, SERIALIZE_TYPE = 64 };
    const unsigned required = CODE | OPAQUE | FLAG | VERSION | LANGUAGE | EXT_FIELDS;
    const uint8_t *end = header + size, *p = skip_character(header, end, '{');
    unsigned members = 0;
    for (;;) {
        Span name, ignored_text;
        int32_t ignored_number;
        p = skip_character(read_json_quoted(request, p, end, &name), end, ':');
        if (p == NULL) return false;
        unsigned member = EQUALS(name, "code")                      ? CODE
                          : EQUALS(name, "opaque")                  ? OPAQUE
                          : EQUALS(name, "flag")                    ? FLAG
                          : EQUALS(name, "version")                 ? VERSION
                          : EQUALS(name, "language")                ? LANGUAGE
                          : EQUALS(name, "extFields")               ? EXT_FIELDS
                          : EQUALS(name, "serializeTypeCurrentRPC") ? SERIALIZE_TYPE
                                                                    : 0;
        if (member == 0 || members & member) return false;
        members |= member;
        switch (member) {
        case CODE:
            p = read_json_number(p, end, &request->code);
            if (request->code != SEND_MESSAGE_V2) return false; /* Early: nearly all clients write it first. */
            break;
        case OPAQUE: p = read_json_number(p, end, &request->opaque); break;
        case FLAG: p = read_json_number(p, end, &request->flag); break;
        case VERSION: p = read_json_number(p, end, &ignored_number); break;
        case EXT_FIELDS: p = read_ext_fields(request, p, end); break;
        default: p = read_json_quoted(request, p, end, &ignored_text);
        }
        if (p == NULL || p >= end) return false;
        if (*p == '}') return p + 1 == end && (members & required) == required;
        if (*p++ != ',') return false;
    }
}

/* -- fields and properties ---------------------------------------------------------------------------------------- */

static Span field(const SendRequest *request, char letter) { return request->fields[letter - 'a']; }

static bool read_fields(SendRequest *request) {
    int32_t ignored;
    Span is_batch = field(request, 'm');
    request->topic = field(request, 'b');
    request->properties = field(request, 'i');
    return field(request, 'a').at != NULL && request->topic.at != NULL && field(request, 'c').at != NULL &&
           request->properties.at != NULL && read_int(field(request, 'd'), &ignored) &&
           read_int(field(request, 'e'), &request->queue_id) && read_int(field(request, 'f'), &request->sys_flag) &&
           read_number(field(request, 'g'), 18, &request->born_timestamp) &&
           read_int(field(request, 'h'), &request->message_flag) &&
           read_optional_int(field(request, 'j'), &request->reconsume_times) &&
           read_optional_int(field(request, 'l'), &ignored) && (is_batch.at == NULL || EQUALS(is_batch, "false"));
}

/* The unique key, which the answer repeats, must be the value of the property and need no escapes. */
static bool read_unique_key(SendRequest *request) {
    Span properties = request->properties;
    const uint8_t *end = properties.at + properties.size, *name = FIND(properties, properties.at, "UNIQ_KEY\x01");
    /* The second condition: it is the end of another property's name. */
    if (name == NULL || (name != properties.at && name[-1] != SEPARATOR)) return false;
    const uint8_t *p = request->unique_key.at = name + sizeof("UNIQ_KEY\x01") - 1;
    for (; p < end && *p != SEPARATOR; p++) {
        uint8_t lower = *p | 32;
        if (!((*p >= '0' && *p <= '9') || (lower >= 'a' && lower <= 'z'))) return false;
    }
    request->unique_key.size = (size_t)(p - request->unique_key.at);
    return request->unique_key.size > 0 && request->unique_key.size <= MAX_UNIQUE_KEY_BYTES;
}

static bool needs_special_path(Span properties) {
    return CONTAINS(properties, "DELAY") || CONTAINS(properties, "TIMER_") || CONTAINS(properties, "POP_CK") ||
           CONTAINS(properties, "INNER_NUM") ||
           (CONTAINS(properties, "MSG") &&
            (CONTAINS(properties, "TRAN_MSG") || CONTAINS(properties, "MSG_REGION") ||
             CONTAINS(properties, "_SYS_MSG_PRIORITY_")));
}

/* False if every WAIT, also one at the end of another name, has exactly the value that producers write. */
static bool may_be_wait_declined(Span properties) {
    const uint8_t *end = properties.at + properties.size, *p = properties.at;
    while ((p = FIND(properties, p, "WAIT\x01")) != NULL) {
        p += sizeof("WAIT\x01") - 1;
        if (end - p < 4 || memcmp(p, "true", 4) != 0 || (end - p > 4 && p[4] != SEPARATOR)) return true;
    }
    return false;
}

/* The hash of the last TAGS, 0 without one; Java's hash of a text, for ASCII. */
static int32_t tags_code(Span properties) {
    const uint8_t *end = properties.at + properties.size, *tags = NULL;
    for (const uint8_t *p = properties.at; (p = FIND(properties, p, "TAGS\x01")) != NULL; p += sizeof("TAGS\x01") - 1)
        if (p == properties.at || p[-1] == SEPARATOR) tags = p + sizeof("TAGS\x01") - 1;
    uint32_t hash = 0;
    for (; tags != NULL && tags < end && *tags != SEPARATOR; tags++) hash = 31 * hash + *tags;
    return (int32_t)hash;
}

bool read_send_request(SendRequest *request, const uint8_t *frame, size_t header_size, const uint8_t *frame_end,
                       bool is_binary, bool may_decline_wait) {
    memset(request->fields, 0, sizeof request->fields);
    request->unescaped_size = 0;
    request->body = (Span){frame + header_size, (size_t)(frame_end - frame) - header_size};
    if (request->body.size == 0 || request->body.size > MAX_BODY_BYTES) return false;
    if (!(is_binary ? decode_binary(request, frame, header_size) : decode_json(request, frame, header_size))) return false;
    /* A flag marks answers and oneway requests. */
    if (request->flag != 0 || request->opaque < 0 || !read_fields(request)) return false;
    Span topic = request->topic, properties = request->properties;
    if (topic.size == 0 || topic.size > MAX_TOPIC_BYTES || topic.at[0] == '%' || !is_ascii(topic)) return false;
    if (request->sys_flag & UNUSUAL_SYS_FLAGS) return false;
    if (!is_ascii(properties) || memchr(properties.at, 0, properties.size) != NULL) return false;
    if (!read_unique_key(request) || needs_special_path(properties)) return false;
    if (!may_decline_wait && may_be_wait_declined(properties)) return false;
    request->is_fifo = CONTAINS(properties, "__SHARDINGKEY\x01");
    request->tags_code = tags_code(properties);
    return true;
}
