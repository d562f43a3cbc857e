/* The heads and data of many entries, behind those in a buffer: in one call, since each loop of Python over them costs
 * as much as the copying.
 *
 * `sluice.datastream.file.operation` does the same in Python where this module was not built, and the tests compare
 * both.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define HEAD 17 /* u8 packet type, u32 size, u32 entry type, u64 number; big-endian */
#define BOOKMARK_TYPE 0xB0
#define PACKET_DATA 2

static uint8_t *put(uint8_t *to, uint64_t value, int size)
{
    for (int i = size - 1; i >= 0; i--, value >>= 8)
        to[i] = (uint8_t)value;
    return to + size;
}

/* The type of an entry that needs no look by itself; -1: another one, or no u32. */
static int64_t plain_type(PyObject *given)
{
    long long value;
    int overflow = 0;

    if (!PyLong_Check(given))
        return -1;
    value = PyLong_AsLongLongAndOverflow(given, &overflow);
    return overflow || value < 0 || value >= UINT32_MAX || value == BOOKMARK_TYPE ? -1 : value;
}

PyDoc_STRVAR(append_doc,
"append(buffer, entry_types, data, at, number, room, interval, /) -> tuple[int, list[int]]\n\n"
"Append entries to a bytearray, from place `at` of the lists on, as long as they are plain and fit in `room`.\n\n"
"Return how many there are, and where in the buffer those begin whose number is a multiple of `interval`.");

static PyObject *append(PyObject *module, PyObject *args)
{
    PyObject *buffer, *entry_types, *data, *starts, *result = NULL;
    Py_ssize_t at, room, filled, total = 0, count = 0;
    unsigned long long number, interval;
    uint8_t *to;

    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!O!nKnK:append", &PyByteArray_Type, &buffer, &PyList_Type, &entry_types, &PyList_Type,
                          &data, &at, &number, &room, &interval))
        return NULL;
    if (at < 0 || at > PyList_GET_SIZE(data) || PyList_GET_SIZE(entry_types) != PyList_GET_SIZE(data))
        return PyErr_Format(PyExc_ValueError, "at: got %zd, %zd types and %zd data, expected as many of both, and a place",
                            at, PyList_GET_SIZE(entry_types), PyList_GET_SIZE(data));
    if (interval == 0)
        return PyErr_Format(PyExc_ValueError, "interval: got 0, expected at least 1");
    if ((starts = PyList_New(0)) == NULL)
        return NULL;
    filled = PyByteArray_GET_SIZE(buffer);
    for (Py_ssize_t i = at; i < PyList_GET_SIZE(data); i++, count++) {
        PyObject *one = PyList_GET_ITEM(data, i);

        if (!PyBytes_CheckExact(one) || plain_type(PyList_GET_ITEM(entry_types, i)) < 0 ||
            PyBytes_GET_SIZE(one) > room - total - HEAD)
            break;
        if ((number + (uint64_t)count) % interval == 0) {
            PyObject *start = PyLong_FromSsize_t(filled + total);
            if (start == NULL || PyList_Append(starts, start) < 0) {
                Py_XDECREF(start);
                goto done;
            }
            Py_DECREF(start);
        }
        total += HEAD + PyBytes_GET_SIZE(one);
    }
    if (count > 0) {
        if (PyByteArray_Resize(buffer, filled + total) < 0)
            goto done;
        to = (uint8_t *)PyByteArray_AS_STRING(buffer) + filled;
        for (Py_ssize_t i = at; i < at + count; i++) {
            PyObject *one = PyList_GET_ITEM(data, i);
            Py_ssize_t size = PyBytes_GET_SIZE(one);

            to = put(to, PACKET_DATA, 1);
            to = put(to, (uint64_t)(HEAD + size), 4);
            to = put(to, (uint64_t)plain_type(PyList_GET_ITEM(entry_types, i)), 4);
            to = put(to, number + (uint64_t)(i - at), 8);
            memcpy(to, PyBytes_AS_STRING(one), (size_t)size);
            to += size;
        }
    }
    result = Py_BuildValue("nO", count, starts);
done:
    Py_DECREF(starts);
    return result;
}

static PyMethodDef methods[] = {
    {"append", append, METH_VARARGS, append_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_many_entries", "Many entries in one call.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__many_entries(void)
{
    return PyModuleDef_Init(&definition);
}
