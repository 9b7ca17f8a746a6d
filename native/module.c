/* The module `rocketmq_native`: optional C for the hottest paths. See README.md in this folder.
 *
 * It needs the GIL: its types read and change Python objects over many steps that no other thread may see. A module
 * that does not say otherwise makes a free-threaded interpreter turn its GIL on.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rocketmq_native", "Optional C for the hottest paths of rocketmq-gateway.", -1, NULL,
};

PyMODINIT_FUNC PyInit_rocketmq_native(void) {
    return PyModule_Create(&definition);
}
