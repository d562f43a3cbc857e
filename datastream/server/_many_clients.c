/* The same bytes to many clients in one call, without Python's lock: a loop of Python over ten thousand sockets takes as
 * long as the kernel.
 *
 * `sluice.datastream.server.live_clients` has the clients, and sends to each by itself where this module was not built.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <linux/sockios.h>

#define WORDS 5 /* of a client; the enum has their order */
enum { PLACE, UNACKNOWLEDGED, SINCE, SEEN, ACTIVE };
#define NO_PLACE (UINT64_MAX - 1) /* and above: a client that is looked at by itself, or none */

/* Room for all `numbers`, once `state` is known to have the words of each; NULL: an error is set. */
static int32_t *room_for(const Py_buffer *numbers, const Py_buffer *state)
{
    const int32_t *number = numbers->buf;
    const Py_ssize_t count = numbers->len / (Py_ssize_t)sizeof *number;
    int32_t *room;

    for (Py_ssize_t i = 0; i < count; i++)
        if (number[i] < 0 || ((Py_ssize_t)number[i] + 1) * WORDS * (Py_ssize_t)sizeof(uint64_t) > state->len) {
            PyErr_Format(PyExc_ValueError, "numbers: got socket %d, expected one that `state` has", (int)number[i]);
            return NULL;
        }
    if ((room = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *room)) == NULL)
        PyErr_NoMemory();
    return room;
}

static PyObject *list_of(const int32_t *numbers, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);

    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *one = PyLong_FromLong(numbers[i]);

        if (one == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, one);
    }
    return list;
}

PyDoc_STRVAR(send_doc,
"send(numbers, state, at, offset, data, seen, now, /) -> tuple[int, list[int]]\n\n"
"Send `data`, which begins at `offset`, to each socket whose client is at place `at`.\n\n"
"`numbers` are sockets (i32), `state` five u64 for each number from 0 on. Return the bytes sent, and the sockets that need\n"
"a look of their own: at another place, full, or broken. A client that is behind `data` already is passed over.");

static PyObject *send_to_many(PyObject *module, PyObject *args)
{
    Py_buffer numbers, state, data;
    unsigned long long at, offset, seen, now, behind, total = 0;
    Py_ssize_t count, left = 0;
    int32_t *number, *rest;
    PyObject *result = NULL, *list;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*KKy*KK:send", &numbers, &state, &at, &offset, &data, &seen, &now))
        return NULL;
    count = numbers.len / (Py_ssize_t)sizeof *number;
    number = numbers.buf;
    behind = offset + (unsigned long long)data.len;
    if ((rest = room_for(&numbers, &state)) == NULL)
        goto done;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t *client = (uint64_t *)state.buf + (size_t)number[i] * WORDS;
        ssize_t sent;

        if (client[PLACE] == behind)
            continue;
        if (client[PLACE] != at) {
            rest[left++] = number[i];
            continue;
        }
        sent = send(number[i], data.buf, (size_t)data.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            client[PLACE] = offset + (uint64_t)sent;
            if (client[UNACKNOWLEDGED] == 0)
                client[SINCE] = now;
            client[UNACKNOWLEDGED] += (uint64_t)sent;
            client[SEEN] = seen;
            total += (uint64_t)sent;
        }
        if (sent != data.len)
            rest[left++] = number[i];
    }
    Py_END_ALLOW_THREADS
    if ((list = list_of(rest, left)) != NULL)
        result = Py_BuildValue("KN", total, list);
done:
    PyMem_Free(rest);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&state);
    PyBuffer_Release(&data);
    return result;
}

PyDoc_STRVAR(idle_doc,
"idle(numbers, state, now, idle_max, /) -> list[int]\n\n"
"Note the time for each client that took all that it was sent; return the others that need a look of their own.\n\n"
"These have not taken everything, or were sent nothing for longer than `idle_max`, which has the unit of `now`.");

static PyObject *idle(PyObject *module, PyObject *args)
{
    Py_buffer numbers, state;
    unsigned long long now, idle_max;
    Py_ssize_t count, left = 0;
    int32_t *number, *rest;
    PyObject *result = NULL;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*KK:idle", &numbers, &state, &now, &idle_max))
        return NULL;
    count = numbers.len / (Py_ssize_t)sizeof *number;
    number = numbers.buf;
    if ((rest = room_for(&numbers, &state)) == NULL)
        goto done;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t *client = (uint64_t *)state.buf + (size_t)number[i] * WORDS;
        int waiting = 1;

        if (client[PLACE] >= NO_PLACE || ioctl(number[i], SIOCOUTQ, &waiting) != 0 || waiting) {
            rest[left++] = number[i];
        } else if (client[UNACKNOWLEDGED]) {
            client[UNACKNOWLEDGED] = 0;
            client[ACTIVE] = now;
        } else if (now > client[ACTIVE] && now - client[ACTIVE] > idle_max) {
            rest[left++] = number[i];
        }
    }
    Py_END_ALLOW_THREADS
    result = list_of(rest, left);
done:
    PyMem_Free(rest);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&state);
    return result;
}

static PyMethodDef methods[] = {
    {"send", send_to_many, METH_VARARGS, send_doc},
    {"idle", idle, METH_VARARGS, idle_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_many_clients", "The same bytes to many clients in one call.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__many_clients(void)
{
    return PyModuleDef_Init(&definition);
}
