/* Numbers and texts in buffers. Nothing here checks a length: the callers do. */
#ifndef ROCKETMQ_BYTES_H
#define ROCKETMQ_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes that belong to somebody else: a part of a frame. `at` is NULL where a header lacks the field. */
typedef struct {
    const uint8_t *at;
    size_t size;
} Span;

/* Shifts instead of casts: they hold for every alignment and byte order, and compilers make one instruction of them. */
static inline uint16_t read_16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t read_32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline uint8_t *write_16(uint8_t *to, uint32_t value) {
    to[0] = (uint8_t)(value >> 8), to[1] = (uint8_t)value;
    return to + 2;
}
static inline uint8_t *write_32(uint8_t *to, uint32_t value) {
    write_16(to, value >> 16), write_16(to + 2, value);
    return to + 4;
}
static inline uint8_t *write_64(uint8_t *to, uint64_t value) {
    write_32(to, (uint32_t)(value >> 32)), write_32(to + 4, (uint32_t)value);
    return to + 8;
}
static inline uint8_t *write_bytes(uint8_t *to, const void *from, size_t size) {
    memcpy(to, from, size);
    return to + size;
}

/* The CRC-32 of zlib and of java.util.zip. `prepare_crc32` comes first, once. */
void prepare_crc32(void);
uint32_t crc32_of(Span bytes);

/* True if no byte has its top bit set. */
bool is_ascii(Span text);

/* The first occurrence of `word` at or after `from`, or NULL. */
const uint8_t *find_text(Span text, const uint8_t *from, const char *word, size_t word_size);
#define FIND(text, from, word) find_text(text, from, word, sizeof(word) - 1)
#define CONTAINS(text, word) (FIND(text, (text).at, word) != NULL)
#define EQUALS(text, word) ((text).size == sizeof(word) - 1 && memcmp((text).at, word, sizeof(word) - 1) == 0)

#endif
