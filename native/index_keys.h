/* Key indexing for `MessageIndex`: see index_keys.c. */
#ifndef ROCKETMQ_INDEX_KEYS_H
#define ROCKETMQ_INDEX_KEYS_H

#include "module.h"

/* (log, position, end, offset, limit, max_keys, index, slots, next_entry, last_entry, begin_ms, end_ms, slots_used,
 * end_offset) -> (indexed, bytes, next_entry, end_ms, slots_used, end_offset) */
PyObject *index_messages(PyObject *module, PyObject *arguments);

#endif
