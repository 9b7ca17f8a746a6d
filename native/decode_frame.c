/* Decodes frames to `codec.command.Command`: the usual ones. For all others it returns None, and Python reads them again.
 *
 * A JSON header is usual if it is written without spaces, holds each member at most once and none that is unknown, and
 * ASCII texts only; extFields may be missing, as in heartbeats. A binary header is usual if all of its texts are ASCII.
 *
 * rule: header word, serialisation, body    codec.command:decode_frame
 * rule: header without extFields            codec.command:_decode_unusual_json
 * rule: binary header                       codec.command:_decode_binary_frame
 * rule: binary header, members              codec.command:_decode_binary
 * rule: binary header, fields               codec.command:_binary_ext
 */
#include "module.h"

#include "bytes.h"
#include "decode_frame.h"
#include "send_request.h"

enum {
    WORD_BYTES = 4,
    BINARY_HEAD_BYTES = 21,
    MAX_USUAL_HEADER_BYTES = 8192,
    CACHED_NAMES = 512,
    MAX_CACHED_NAME_BYTES = 40,
    MAX_LANGUAGES = 32,
};

/* Field names are few, and repeated by all clients; a slot holds the last one with its hash. Owned references. */
static struct {
    uint32_t hash;
    uint8_t size, bytes[MAX_CACHED_NAME_BYTES];
    PyObject *text;
} names[CACHED_NAMES];

/* Set by `prepare_decode_frame`, once. */
static PyTypeObject *command_type;
static allocfunc allocate_command;
static PyObject *languages[MAX_LANGUAGES], *other_language;
static Py_ssize_t language_count;

enum { BINARY, BODY, CODE, EXT, FLAG, LANGUAGE, OPAQUE, REMARK, VERSION, ATTRIBUTES };
static const char *const attribute_texts[ATTRIBUTES] = {"binary",   "body",   "code",   "ext",    "flag",
                                                        "language", "opaque", "remark", "version"};
static PyObject *attribute_names[ATTRIBUTES];

static PyObject *new_text(Span text) { return PyUnicode_FromStringAndSize((const char *)text.at, (Py_ssize_t)text.size); }

/* Return a new reference to the text of a field's name. */
static PyObject *name_text(Span name) {
    if (name.size > MAX_CACHED_NAME_BYTES) return new_text(name);
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < name.size; i++) hash = (hash ^ name.at[i]) * 16777619u;
    hash ^= hash >> 15;
    unsigned slot = hash % CACHED_NAMES;
    if (names[slot].text == NULL || names[slot].hash != hash || names[slot].size != name.size ||
        memcmp(names[slot].bytes, name.at, name.size) != 0) {
        PyObject *text = new_text(name);
        if (text == NULL) return NULL;
        Py_XDECREF(names[slot].text);
        names[slot].text = text;
        names[slot].hash = hash;
        names[slot].size = (uint8_t)name.size;
        memcpy(names[slot].bytes, name.at, name.size);
    }
    Py_INCREF(names[slot].text);
    return names[slot].text;
}

/* The parts of a command. What it owns is released by `drop_parts`. */
typedef struct {
    int32_t code, opaque, flag, version;
    PyObject *ext, *remark, *language; /* language is borrowed */
    uint8_t unescaped[MAX_USUAL_HEADER_BYTES];
} Parts;

static void drop_parts(Parts *parts) {
    Py_CLEAR(parts->ext);
    Py_CLEAR(parts->remark);
}

static bool add_field(Parts *parts, Span name, Span value) {
    PyObject *key = name_text(name), *text = key == NULL ? NULL : new_text(value);
    bool done = text != NULL && PyDict_SetItem(parts->ext, key, text) == 0;
    Py_XDECREF(key);
    Py_XDECREF(text);
    return done;
}

/* -- binary headers ----------------------------------------------------------------------------------------------- */

static bool read_binary(Parts *parts, const uint8_t *header, size_t size) {
    if (size < BINARY_HEAD_BYTES) return false;
    parts->code = (int16_t)read_16(header);
    parts->language = header[2] < language_count ? languages[header[2]] : other_language;
    parts->version = (int16_t)read_16(header + 3);
    parts->opaque = (int32_t)read_32(header + 5);
    parts->flag = (int32_t)read_32(header + 9);
    size_t remark_size = read_32(header + 13);
    if (remark_size > size - BINARY_HEAD_BYTES) return false;
    Span remark = {header + 17, remark_size};
    const uint8_t *p = header + BINARY_HEAD_BYTES + remark_size, *end = header + size;
    if (read_32(p - 4) != (size_t)(end - p) || !is_ascii((Span){p, (size_t)(end - p)}) || !is_ascii(remark)) return false;
    if (remark_size > 0 && (parts->remark = new_text(remark)) == NULL) return false;
    if ((parts->ext = PyDict_New()) == NULL) return false;
    while (p < end) {
        if (end - p < 2) return false;
        Span name = {p + 2, read_16(p)};
        /* Python refuses some forms of empty names. */
        if (name.size == 0 || (size_t)(end - name.at) < name.size + 4) return false;
        Span value = {name.at + name.size + 4, read_32(name.at + name.size)};
        if ((size_t)(end - value.at) < value.size || !add_field(parts, name, value)) return false;
        p = value.at + value.size;
    }
    return true;
}

/* -- JSON headers ------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;
    uint8_t *unescaped; /* room for texts that hold escapes: never less than what is left of the header */
} Reader;

static bool take(Reader *reader, char character) {
    if (reader->at >= reader->end || *reader->at != (uint8_t)character) return false;
    reader->at++;
    return true;
}

static bool read_text(Reader *reader, Span *text) {
    if (!take(reader, '"')) return false;
    const uint8_t *p = reader->at, *end = reader->end;
    while (p < end && *p != '"' && *p != '\\' && *p >= 0x20 && *p < 0x80) p++;
    if (p >= end) return false;
    *text = (Span){reader->at, (size_t)(p - reader->at)};
    if (*p == '\\') {
        uint8_t *to = write_bytes(reader->unescaped, text->at, text->size);
        while (p < end && *p != '"') {
            size_t size = 1;
            if (*p < 0x20 || *p >= 0x80) return false;
            if (*p == '\\') {
                size = read_escape(p, end, to);
                if (size == 0) return false;
            } else {
                *to = *p;
            }
            to++, p += size;
        }
        if (p >= end) return false;
        *text = (Span){reader->unescaped, (size_t)(to - reader->unescaped)};
        reader->unescaped = to;
    }
    reader->at = p;
    return take(reader, '"');
}

/* A number from 0 to 2^31 - 1 as clients write it. */
static bool read_int32(Reader *reader, int32_t *number) {
    const uint8_t *start = reader->at;
    int64_t value = 0;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9' && reader->at - start < 11)
        value = value * 10 + (*reader->at++ - '0');
    if (reader->at == start || (*start == '0' && reader->at - start > 1) || value > INT32_MAX) return false;
    *number = (int32_t)value;
    return true;
}

static bool read_fields(Reader *reader, Parts *parts) {
    if ((parts->ext = PyDict_New()) == NULL || !take(reader, '{')) return false;
    if (take(reader, '}')) return true;
    do {
        Span name, value;
        if (!read_text(reader, &name) || !take(reader, ':') || !read_text(reader, &value)) return false;
        if (!add_field(parts, name, value)) return false;
    } while (take(reader, ','));
    return take(reader, '}');
}

static bool read_language(Reader *reader, Parts *parts) {
    Span text;
    if (!read_text(reader, &text)) return false;
    for (Py_ssize_t i = 0; i < language_count; i++) {
        Py_ssize_t size;
        const char *name = PyUnicode_AsUTF8AndSize(languages[i], &size);
        if (name == NULL) return false;
        if ((size_t)size == text.size && memcmp(name, text.at, text.size) == 0) {
            parts->language = languages[i];
            return true;
        }
    }
    return false;
}

static bool read_json(Parts *parts, const uint8_t *header, size_t size) {
    enum { HAS_KIND = 1 << ATTRIBUTES };
    Reader reader = {header, header + size, parts->unescaped};
    unsigned seen = 0;
    if (!take(&reader, '{')) return false;
    do {
        Span name, text;
        if (!read_text(&reader, &name) || !take(&reader, ':')) return false;
        unsigned member = EQUALS(name, "code")                      ? 1 << CODE
                          : EQUALS(name, "opaque")                  ? 1 << OPAQUE
                          : EQUALS(name, "flag")                    ? 1 << FLAG
                          : EQUALS(name, "version")                 ? 1 << VERSION
                          : EQUALS(name, "language")                ? 1 << LANGUAGE
                          : EQUALS(name, "extFields")               ? 1 << EXT
                          : EQUALS(name, "remark")                  ? 1 << REMARK
                          : EQUALS(name, "serializeTypeCurrentRPC") ? HAS_KIND
                                                                    : 0;
        if (member == 0 || seen & member) return false;
        seen |= member;
        bool read = member == 1 << CODE       ? read_int32(&reader, &parts->code)
                    : member == 1 << OPAQUE   ? read_int32(&reader, &parts->opaque)
                    : member == 1 << FLAG     ? read_int32(&reader, &parts->flag)
                    : member == 1 << VERSION  ? read_int32(&reader, &parts->version)
                    : member == 1 << LANGUAGE ? read_language(&reader, parts)
                    : member == 1 << EXT      ? read_fields(&reader, parts)
                                              : read_text(&reader, &text);
        if (!read) return false;
        if (member == 1 << REMARK && text.size > 0 && (parts->remark = new_text(text)) == NULL) return false;
    } while (take(&reader, ','));
    const unsigned needed = 1 << CODE | 1 << OPAQUE | 1 << FLAG | 1 << VERSION | 1 << LANGUAGE;
    if (!take(&reader, '}') || reader.at != reader.end || (seen & needed) != needed) return false;
    return seen & 1 << EXT || (parts->ext = PyDict_New()) != NULL;
}

/* -- frames ------------------------------------------------------------------------------------------------------- */

static bool set_number(PyObject *command, int attribute, long value) {
    PyObject *number = PyLong_FromLong(value);
    bool done = number != NULL && PyObject_SetAttr(command, attribute_names[attribute], number) == 0;
    Py_XDECREF(number);
    return done;
}

static PyObject *new_command(const Parts *parts, bool is_binary, Span body) {
    PyObject *command = allocate_command(command_type, 0);
    PyObject *content = PyBytes_FromStringAndSize((const char *)body.at, (Py_ssize_t)body.size);
    bool done = command != NULL && content != NULL && set_number(command, CODE, parts->code) &&
                set_number(command, OPAQUE, parts->opaque) && set_number(command, FLAG, parts->flag) &&
                set_number(command, VERSION, parts->version) &&
                PyObject_SetAttr(command, attribute_names[EXT], parts->ext) == 0 &&
                PyObject_SetAttr(command, attribute_names[BODY], content) == 0 &&
                PyObject_SetAttr(command, attribute_names[REMARK], parts->remark ? parts->remark : Py_None) == 0 &&
                PyObject_SetAttr(command, attribute_names[LANGUAGE], parts->language) == 0 &&
                PyObject_SetAttr(command, attribute_names[BINARY], is_binary ? Py_True : Py_False) == 0;
    Py_XDECREF(content);
    if (!done) Py_CLEAR(command);
    return command;
}

/* Return the command in frame[0 .. size), which begins with the header word; NULL without an exception for Python. */
static PyObject *decode(const uint8_t *frame, size_t size, size_t max_header_size) {
    if (size < WORD_BYTES) return NULL;
    uint32_t word = read_32(frame);
    size_t header_size = word & 0xFFFFFF;
    bool is_binary = word >> 24 == 1;
    if (word >> 24 > 1 || header_size > size - WORD_BYTES || header_size > max_header_size ||
        header_size > MAX_USUAL_HEADER_BYTES)
        return NULL;
    Parts parts;
    parts.ext = parts.remark = NULL;
    const uint8_t *header = frame + WORD_BYTES;
    PyObject *command = NULL;
    if ((is_binary ? read_binary : read_json)(&parts, header, header_size))
        command = new_command(&parts, is_binary, (Span){header + header_size, size - WORD_BYTES - header_size});
    drop_parts(&parts);
    return command;
}

PyObject *decode_frame(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 4 || command_type == NULL) {
        PyErr_SetString(PyExc_TypeError, "decode_frame takes a buffer, start, end and the largest header");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(arguments[1]), end = PyLong_AsSsize_t(arguments[2]),
               max_header_size = PyLong_AsSsize_t(arguments[3]);
    Py_buffer buffer;
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) != 0) return NULL;
    PyObject *command = NULL;
    if (start >= 0 && start <= end && end <= buffer.len && max_header_size > 0)
        command = decode((const uint8_t *)buffer.buf + start, (size_t)(end - start), (size_t)max_header_size);
    PyBuffer_Release(&buffer);
    if (command == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
    return command;
}

PyObject *prepare_decode_frame(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *type, *language_names, *other;
    if (!PyArg_ParseTuple(arguments, "O!O!U", &PyType_Type, &type, &PyTuple_Type, &language_names, &other)) return NULL;
    Py_ssize_t size = PyTuple_Size(language_names);
    if (size > MAX_LANGUAGES) return PyErr_Format(PyExc_ValueError, "more than %d languages", MAX_LANGUAGES);
    for (int i = 0; i < ATTRIBUTES; i++) {
        if (attribute_names[i] == NULL) attribute_names[i] = PyUnicode_InternFromString(attribute_texts[i]);
        if (attribute_names[i] == NULL) return NULL;
    }
    for (language_count = 0; language_count < size; language_count++) {
        Py_XDECREF(languages[language_count]);
        languages[language_count] = PyTuple_GetItem(language_names, language_count);
        Py_INCREF(languages[language_count]);
    }
    Py_INCREF(other), Py_INCREF(type);
    Py_XDECREF(other_language), Py_XDECREF((PyObject *)command_type);
    other_language = other;
    command_type = (PyTypeObject *)type;
    allocate_command = (allocfunc)PyType_GetSlot(command_type, Py_tp_alloc);
    Py_RETURN_NONE;
}
