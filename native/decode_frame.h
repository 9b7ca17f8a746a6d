/* The decoder of frames: see decode_frame.c. */
#ifndef ROCKETMQ_DECODE_FRAME_H
#define ROCKETMQ_DECODE_FRAME_H

#include "module.h"

/* (Command, names of languages, name of the others): comes first, once. */
PyObject *prepare_decode_frame(PyObject *module, PyObject *arguments);

/* (buffer, start, end, largest header) -> Command, or None where Python has to decide. */
PyObject *decode_frame(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
