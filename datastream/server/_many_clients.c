/* The same bytes to many clients in one call, without Python's lock: a loop of Python over ten thousand sockets takes as
 * long as the kernel.
 *
 * `sluice.datastream.server.live_clients` has the clients, and sends to each by itself where this module was not built.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <sys/socket.h>

#define WORDS 3 /* of a client: its place in the stream, bytes sent, changes seen */

PyDoc_STRVAR(send_doc,
"send(numbers, state, at, offset, data, seen, /) -> tuple[int, list[int]]\n\n"
"Send `data`, which begins at `offset`, to each socket whose client is at place `at`.\n\n"
"`numbers` are sockets (i32), `state` three u64 for each number from 0 on. Return the bytes sent, and the sockets that need\n"
"a look of their own: at another place, full, or broken. A client that is behind `data` already is passed over.");

static PyObject *send_to_many(PyObject *module, PyObject *args)
{
    Py_buffer numbers, state, data;
    unsigned long long at, offset, seen, behind, total = 0;
    Py_ssize_t count, left = 0;
    int32_t *number, *rest;
    PyObject *result = NULL, *list;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*KKy*K:send", &numbers, &state, &at, &offset, &data, &seen))
        return NULL;
    count = numbers.len / (Py_ssize_t)sizeof *number;
    number = numbers.buf;
    behind = offset + (unsigned long long)data.len;
    if ((rest = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *rest)) == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (number[i] < 0 || ((Py_ssize_t)number[i] + 1) * WORDS * (Py_ssize_t)sizeof(uint64_t) > state.len) {
            PyErr_Format(PyExc_ValueError, "numbers: got socket %d, expected one that `state` has", (int)number[i]);
            goto done;
        }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t *client = (uint64_t *)state.buf + (size_t)number[i] * WORDS;
        ssize_t sent;

        if (client[0] == behind)
            continue;
        if (client[0] != at) {
            rest[left++] = number[i];
            continue;
        }
        sent = send(number[i], data.buf, (size_t)data.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            client[0] = offset + (uint64_t)sent;
            client[1] += (uint64_t)sent;
            client[2] = seen;
            total += (uint64_t)sent;
        }
        if (sent != data.len)
            rest[left++] = number[i];
    }
    Py_END_ALLOW_THREADS
    if ((list = PyList_New(left)) == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < left; i++) {
        PyObject *one = PyLong_FromLong(rest[i]);

        if (one == NULL) {
            Py_DECREF(list);
            goto done;
        }
        PyList_SET_ITEM(list, i, one);
    }
    result = Py_BuildValue("KN", total, list);
done:
    PyMem_Free(rest);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&state);
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"send", send_to_many, METH_VARARGS, send_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_many_clients", "The same bytes to many clients in one call.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__many_clients(void)
{
    return PyModuleDef_Init(&definition);
}
