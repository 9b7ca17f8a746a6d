/* What the files of the module offer to module.c. */
#ifndef ROCKETMQ_MODULE_H
#define ROCKETMQ_MODULE_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Add the type PlainSends. False: a Python exception is set. */
bool init_plain_sends(PyObject *module);

#endif
