/* A request to store one message, as a frame has it. */
#ifndef ROCKETMQ_SEND_REQUEST_H
#define ROCKETMQ_SEND_REQUEST_H

#include "bytes.h"

#define MAX_TOPIC_BYTES 127      /* longer ones are stored in another layout */
#define MAX_UNIQUE_KEY_BYTES 128 /* bounds the answer, which repeats it */
#define MAX_BODY_BYTES 65536     /* of larger ones the checksum takes most of the time, in Python too */
#define UNESCAPED_BYTES 8192

typedef struct {
    int32_t code, flag, opaque;
    Span fields['z' - 'a' + 1]; /* by their one-letter wire names */
    Span topic, properties, unique_key, body;
    int32_t queue_id, sys_flag, message_flag, reconsume_times, tags_code;
    int64_t born_timestamp;
    bool is_fifo;
    size_t unescaped_size;
    uint8_t unescaped[UNESCAPED_BYTES]; /* JSON texts that hold escapes */
} SendRequest;

/* Read a send whose header has `header_size` bytes at `frame` and whose body follows up to `frame_end`. Return false for
 * anything that Python has to decide: other requests, rare forms, errors. What `request` points to lies in the frame,
 * and in `request` itself. `may_decline_wait`: also for a send that does not want to wait until its message is safe. */
bool read_send_request(SendRequest *request, const uint8_t *frame, size_t header_size, const uint8_t *frame_end,
                       bool is_binary, bool may_decline_wait);

/* The character of the JSON escape at `p`, which ends before `end`, and its size; 0 for an escape that Python reads. */
size_t read_escape(const uint8_t *p, const uint8_t *end, uint8_t *character);

#endif
