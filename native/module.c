/* The module `_rocketmq_native`: optional C for the hottest paths. See README.md in this folder.
 *
 * It needs the GIL: its types read and change Python objects over many steps that no other thread may see. A module
 * that does not say otherwise makes a free-threaded interpreter turn its GIL on.
 */
#include "module.h"

#include "decode_frame.h"
#include "index_keys.h"

static PyMethodDef methods[] = {
    {"decode_frame", (PyCFunction)(void (*)(void))decode_frame, METH_FASTCALL, "Decode a usual frame; None otherwise."},
    {"prepare_decode_frame", prepare_decode_frame, METH_VARARGS, "Set the type of commands and the languages."},
    {"index_messages", index_messages, METH_VARARGS, "Add the keys of consecutive messages to an index file."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rocketmq_native", "Optional C for the hottest paths of rocketmq-gateway.", -1, methods,
};

PyMODINIT_FUNC PyInit__rocketmq_native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "SOURCES_CHECKSUM", SOURCES_CHECKSUM)) Py_CLEAR(module);
    if (module && !init_plain_sends(module)) Py_CLEAR(module);
    return module;
}
