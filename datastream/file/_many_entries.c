/* Many entries in one call: put behind others in a buffer, read from a page as objects or as columns, or walked. A
 * loop of Python over them costs more than the copying.
 *
 * `sluice.datastream.file.operation` and `pages` do the same in Python where this module was not built, and the tests
 * compare both. What is no entry is theirs to name: here it only ends the call.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define HEAD 17 /* u8 packet type, u32 size, u32 entry type, u64 number; big-endian */
#define BOOKMARK_TYPE 0xB0
#define PAGE_SIZE (1 << 20)
#define PACKET_DATA 2

static inline void put_4(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (24 - 8 * i));
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

            to[0] = PACKET_DATA;
            put_4(to + 1, (uint32_t)(HEAD + size));
            put_4(to + 5, (uint32_t)plain_type(PyList_GET_ITEM(entry_types, i)));
            put_4(to + 9, (uint32_t)((number + (uint64_t)(i - at)) >> 32));
            put_4(to + 13, (uint32_t)(number + (uint64_t)(i - at)));
            memcpy(to + HEAD, PyBytes_AS_STRING(one), (size_t)size);
            to += HEAD + size;
        }
    }
    result = Py_BuildValue("nO", count, starts);
done:
    Py_DECREF(starts);
    return result;
}

static inline uint32_t get_4(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static inline uint64_t get_8(const uint8_t *from)
{
    return (uint64_t)get_4(from) << 32 | get_4(from + 4);
}

/* The size of the entry `number` at a place, with its head; 0: it is none, or its head goes beyond `left` bytes. */
static Py_ssize_t entry_size(const uint8_t *at, Py_ssize_t left, uint64_t number)
{
    Py_ssize_t size;

    if (left < HEAD || at[0] != PACKET_DATA || get_8(at + 9) != number)
        return 0;
    size = (Py_ssize_t)get_4(at + 1);
    return size < HEAD || size > PAGE_SIZE ? 0 : size;
}

static int add_to(PyObject *list, PyObject *one)
{
    int failed = one == NULL || PyList_Append(list, one) < 0;

    Py_XDECREF(one);
    return failed;
}

PyDoc_STRVAR(columns_doc,
"columns(data, number, end_number, size_wanted, /) -> tuple[list[int], list[bytes]] | None\n\n"
"Return types and data of the whole entries in `data`, from entry `number` up to `end_number`, until their data has\n"
"`size_wanted` bytes. None: one of them is no entry.");

static PyObject *columns(PyObject *module, PyObject *args)
{
    Py_buffer data;
    unsigned long long number, end_number;
    Py_ssize_t wanted, position = 0;
    PyObject *types, *column, *result = NULL;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*KKn:columns", &data, &number, &end_number, &wanted))
        return NULL;
    types = PyList_New(0);
    column = PyList_New(0);
    if (types == NULL || column == NULL)
        goto done;
    while (number < end_number && data.len - position >= HEAD && (wanted > 0 || PyList_GET_SIZE(types) == 0)) {
        const uint8_t *at = (const uint8_t *)data.buf + position;
        Py_ssize_t size = entry_size(at, data.len - position, number);

        if (size == 0) {
            result = Py_NewRef(Py_None);
            goto done;
        }
        if (size > data.len - position)
            break;
        if (add_to(types, PyLong_FromUnsignedLong(get_4(at + 5))) ||
            add_to(column, PyBytes_FromStringAndSize((const char *)at + HEAD, size - HEAD)))
            goto done;
        position += size;
        wanted -= size - HEAD;
        number++;
    }
    result = PyTuple_Pack(2, types, column);
done:
    Py_XDECREF(types);
    Py_XDECREF(column);
    PyBuffer_Release(&data);
    return result;
}

PyDoc_STRVAR(walk_doc,
"walk(page, number, end, interval, bookmark_size_max, /) -> tuple[int, int, list[int], list[tuple[bytes, int]]]\n\n"
"Walk the entries of a page, from entry `number` on, up to position `end` or to what is no entry.\n\n"
"Return the number and the position after the last one, the positions of those whose number is a multiple of\n"
"`interval`, and the bookmarks with their numbers.");

static PyObject *walk(PyObject *module, PyObject *args)
{
    Py_buffer page;
    unsigned long long number, interval;
    Py_ssize_t end, size, bookmark_size_max, position = 0;
    PyObject *places, *bookmarks, *result = NULL;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*KnKn:walk", &page, &number, &end, &interval, &bookmark_size_max))
        return NULL;
    places = PyList_New(0);
    bookmarks = PyList_New(0);
    if (places == NULL || bookmarks == NULL)
        goto done;
    if (end < 0 || end > page.len || interval == 0) {
        PyErr_Format(PyExc_ValueError, "end: got %zd and interval %llu, expected at most the %zd bytes, and 1 or more",
                     end, interval, page.len);
        goto done;
    }
    for (;; number++, position += size) {
        const uint8_t *at = (const uint8_t *)page.buf + position;

        size = entry_size(at, end - position, number);
        if (size == 0 || size > end - position)
            break;
        if (number % interval == 0 && add_to(places, PyLong_FromSsize_t(position)))
            goto done;
        if (get_4(at + 5) == BOOKMARK_TYPE && size > HEAD && size - HEAD <= bookmark_size_max &&
            add_to(bookmarks, Py_BuildValue("y#K", (const char *)at + HEAD, size - HEAD, number)))
            goto done;
    }
    result = Py_BuildValue("KnOO", number, position, places, bookmarks);
done:
    Py_XDECREF(places);
    Py_XDECREF(bookmarks);
    PyBuffer_Release(&page);
    return result;
}

PyDoc_STRVAR(split_doc,
"split(page, number, end, /) -> tuple[int, int, bytes, bytes, bytes]\n\n"
"Walk the entries of a page as `walk` does, and copy them into columns.\n\n"
"Return the number and the position after the last one; the types, int64; where the data of each begins and that of\n"
"the last ends, int32; the data.");

static PyObject *split(PyObject *module, PyObject *args)
{
    Py_buffer page;
    unsigned long long number;
    Py_ssize_t end, size, position = 0, count = 0;
    PyObject *types = NULL, *offsets = NULL, *data = NULL, *result = NULL;
    int64_t *type;
    int32_t *offset;
    uint8_t *start, *to;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*Kn:split", &page, &number, &end))
        return NULL;
    if (end < 0 || end > page.len || end > PAGE_SIZE) {
        PyErr_Format(PyExc_ValueError, "end: got %zd, expected at most the %zd bytes, and a page", end, page.len);
        goto done;
    }
    for (;; count++, position += size) {
        size = entry_size((const uint8_t *)page.buf + position, end - position, number + (uint64_t)count);
        if (size == 0 || size > end - position)
            break;
    }
    types = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof *type);
    offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof *offset);
    data = PyBytes_FromStringAndSize(NULL, position - count * HEAD);
    if (types == NULL || offsets == NULL || data == NULL)
        goto done;
    type = (int64_t *)PyBytes_AS_STRING(types);
    offset = (int32_t *)PyBytes_AS_STRING(offsets);
    to = start = (uint8_t *)PyBytes_AS_STRING(data);
    *offset = 0;
    for (const uint8_t *at = page.buf; count > 0; count--, at += size, to += size - HEAD) {
        size = (Py_ssize_t)get_4(at + 1);
        memcpy(to, at + HEAD, (size_t)(size - HEAD));
        *type++ = get_4(at + 5);
        *++offset = (int32_t)(to - start + size - HEAD);
        number++;
    }
    result = Py_BuildValue("KnOOO", number, position, types, offsets, data);
done:
    Py_XDECREF(types);
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    PyBuffer_Release(&page);
    return result;
}

static PyMethodDef methods[] = {
    {"append", append, METH_VARARGS, append_doc},
    {"columns", columns, METH_VARARGS, columns_doc},
    {"split", split, METH_VARARGS, split_doc},
    {"walk", walk, METH_VARARGS, walk_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_many_entries", "Many entries in one call.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__many_entries(void)
{
    return PyModuleDef_Init(&definition);
}
