/* What is done with each of many items in one call: taken from a message, their kinds, the hashes of their leaves and
 * a tree over these.
 *
 * Called one by one from Python, a short item costs more in the calls than in the work. A processor with AVX-512
 * hashes eight messages at once, one with AVX2 four. `sluice.gateway.blocks.items` and `merkle` do the same in Python
 * where this module was not built, and the tests compare both.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK 128
#define HASH 48
#define TAIL 17 /* the bit 1, and the message's length in 16 bytes */
#define UNLOCKED_BYTES (96 << 10) /* from so many on, other threads may run; to get the lock back takes as long as fewer */
#define SUBTREES_MAX 64
#define ITEMS_TAG 0x0A /* field 1, length-delimited: each item in an item set */

typedef struct {
    const uint8_t *data;
    size_t size; /* without its prefix */
    uint8_t *hash;
} Message;

static const uint64_t FIRST_STATE[8] = {
    0xcbbb9d5dc1059ed8, 0x629a292a367cd507, 0x9159015a3070dd17, 0x152fecd8f70e5939,
    0x67332667ffc00b31, 0x8eb44a8768581511, 0xdb0c2e0d64f98fa7, 0x47b5481dbefa4fa4,
};

static const uint64_t ROUND_WORDS[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc,
    0x3956c25bf348b538, 0x59f111f1b605d019, 0x923f82a4af194f9b, 0xab1c5ed5da6d8118,
    0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694,
    0xe49b69c19ef14ad2, 0xefbe4786384f25e3, 0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65,
    0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2, 0xd5a79147930aa725, 0x06ca6351e003826f, 0x142929670a0e6e70,
    0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b,
    0xa2bfe8a14cf10364, 0xa81a664bbc423001, 0xc24b8b70d0f89791, 0xc76c51a30654be30,
    0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb, 0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b,
    0xca273eceea26619c, 0xd186b8c721c0c207, 0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178,
    0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6, 0x597f299cfc657e2a, 0x5fcb6fab3ad6faec, 0x6c44198c4a475817,
};

#define ROTATE(x, n) (((x) >> (n)) | ((x) << (64 - (n))))
#define BIG_0(x) (ROTATE(x, 28) ^ ROTATE(x, 34) ^ ROTATE(x, 39))
#define BIG_1(x) (ROTATE(x, 14) ^ ROTATE(x, 18) ^ ROTATE(x, 41))
#define SMALL_0(x) (ROTATE(x, 1) ^ ROTATE(x, 8) ^ ((x) >> 7))
#define SMALL_1(x) (ROTATE(x, 19) ^ ROTATE(x, 61) ^ ((x) >> 6))
#define CHOICE(x, y, z) (((x) & ((y) ^ (z))) ^ (z))
#define MAJORITY(x, y, z) (((x) & (y)) | ((z) & ((x) | (y))))

static inline uint64_t read_word(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline void write_word(uint8_t *to, uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(to, &word, 8);
}

static inline size_t blocks_of(const Message *message)
{
    return (1 + message->size + TAIL + BLOCK - 1) / BLOCK;
}

/* As memcpy, of at most 127 bytes; without a call, which takes longer than the copy. */
static inline void copy_short(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size >= 64) {
        memcpy(to, from, 64);
        memcpy(to + size - 64, from + size - 64, 64);
    } else if (size >= 32) {
        memcpy(to, from, 32);
        memcpy(to + size - 32, from + size - 32, 32);
    } else if (size >= 8) {
        for (size_t at = 0; at + 8 < size; at += 8)
            memcpy(to + at, from + at, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else {
        for (size_t at = 0; at < size; at++)
            to[at] = from[at];
    }
}

/* A block of prefix, data and padding: in the data itself if it lies there as a whole, else made in `edge`. */
static inline const uint8_t *block_of(const Message *message, uint8_t prefix, size_t number, uint8_t *edge)
{
    size_t total = 1 + message->size, begin = BLOCK * number, filled = 0;

    if (number > 0 && begin + BLOCK <= total)
        return message->data + begin - 1;
    if (total >= BLOCK && number == 0) {
        edge[0] = prefix;
        memcpy(edge + 1, message->data, BLOCK - 1);
        return edge;
    }
    memset(edge, 0, BLOCK);
    if (number == 0)
        edge[filled++] = prefix;
    if (begin < total) {
        copy_short(edge + filled, message->data + begin + filled - 1, total - begin - filled);
        filled = total - begin;
    }
    if (begin + filled == total)
        edge[filled] = 0x80;
    if (filled + TAIL <= BLOCK)
        write_word(edge + BLOCK - 8, 8 * (uint64_t)total);
    return edge;
}

#define LANES 1
#define WORDS uint64_t
#define NAME(x) x##_in_1
#define TARGET
static inline void load_in_1(uint64_t w[16], const uint8_t *const blocks[1])
{
    for (int t = 0; t < 16; t++)
        w[t] = read_word(blocks[0] + 8 * t);
}
#include "_lanes.h"
#undef LANES
#undef WORDS
#undef NAME
#undef TARGET

#if defined(__x86_64__)
typedef uint64_t Words4 __attribute__((vector_size(32)));
#define LANES 4
#define WORDS Words4
#define NAME(x) x##_in_4
#define TARGET __attribute__((target("avx2")))
/* Four words of each message at a time, turned around. */
static inline TARGET void load_in_4(Words4 w[16], const uint8_t *const blocks[4])
{
    const __m256i swap = _mm256_set_epi64x(0x08090a0b0c0d0e0f, 0x0001020304050607, 0x08090a0b0c0d0e0f, 0x0001020304050607);

    for (int t = 0; t < 16; t += 4) {
        __m256i rows[4], pairs[4];

        for (int i = 0; i < 4; i++)
            rows[i] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(blocks[i] + 8 * t)), swap);
        for (int i = 0; i < 4; i += 2) {
            pairs[i] = _mm256_unpacklo_epi64(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_epi64(rows[i], rows[i + 1]);
        }
        for (int i = 0; i < 2; i++) {
            w[t + i] = (Words4)_mm256_permute2x128_si256(pairs[i], pairs[i + 2], 0x20);
            w[t + 2 + i] = (Words4)_mm256_permute2x128_si256(pairs[i], pairs[i + 2], 0x31);
        }
    }
}
#include "_lanes.h"
#undef LANES
#undef WORDS
#undef NAME
#undef TARGET

typedef uint64_t Words8 __attribute__((vector_size(64)));
#define LANES 8
#define WORDS Words8
#define NAME(x) x##_in_8
#define TARGET __attribute__((target("avx512f,avx512bw")))
/* Eight words of each message at a time, turned around. */
static inline TARGET void load_in_8(Words8 w[16], const uint8_t *const blocks[8])
{
    const __m512i swap = _mm512_set4_epi64(0x08090a0b0c0d0e0f, 0x0001020304050607, 0x08090a0b0c0d0e0f, 0x0001020304050607);

    for (int t = 0; t < 16; t += 8) {
        __m512i rows[8], pairs[8], fours[8];

        for (int i = 0; i < 8; i++)
            rows[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(blocks[i] + 8 * t), swap);
        for (int i = 0; i < 8; i += 2) {
            pairs[i] = _mm512_unpacklo_epi64(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi64(rows[i], rows[i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; j++) { /* words j and j + 4, then j + 2 and j + 6, of four messages */
                fours[i + j] = _mm512_shuffle_i64x2(pairs[i + j], pairs[i + 2 + j], 0x88);
                fours[i + 2 + j] = _mm512_shuffle_i64x2(pairs[i + j], pairs[i + 2 + j], 0xdd);
            }
        for (int j = 0; j < 4; j++) {
            w[t + j] = (Words8)_mm512_shuffle_i64x2(fours[j], fours[4 + j], 0x88);
            w[t + 4 + j] = (Words8)_mm512_shuffle_i64x2(fours[j], fours[4 + j], 0xdd);
        }
    }
}
#include "_lanes.h"
#endif

static int lanes_max(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        return 8;
    if (__builtin_cpu_supports("avx2"))
        return 4;
#endif
    return 1;
}

static void hash_all(const Message *messages, size_t count, uint8_t prefix, int lanes)
{
#if defined(__x86_64__)
    if (lanes == 8) {
        hash_in_8(messages, count, prefix);
        return;
    }
    if (lanes == 4) {
        hash_in_4(messages, count, prefix);
        return;
    }
#endif
    hash_in_1(messages, count, prefix);
}

/* Returns the lanes to use, or 0 with an exception. */
static int checked_lanes(int wanted)
{
    int most = lanes_max();

    if (wanted == 0)
        return most;
    if (wanted == 1 || wanted == 4 || wanted == 8) {
        if (wanted <= most)
            return wanted;
    }
    PyErr_Format(PyExc_ValueError, "lanes: got %d, expected 1, 4 or 8, and at most the %d of this processor", wanted,
                 most);
    return 0;
}

/* The next byte is behind it; 0 and more, or -1: not the shortest form of a number below 2^32. */
static int64_t read_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;

    for (int shift = 0; shift < 35 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;

        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return (byte == 0 && shift > 0) || value > UINT32_MAX ? -1 : (int64_t)value;
    }
    return -1;
}

/* The field number of an item; -1: it is not a single length-delimited field, or `kinds` has no room for its number. */
static inline int kind_at(const uint8_t *at, const uint8_t *end)
{
    int64_t tag = read_varint(&at, end), length = tag < 0 ? -1 : read_varint(&at, end);

    return (tag & 7) != 2 || tag >> 3 == 0 || tag >> 3 > UINT8_MAX || length != end - at ? -1 : (int)(tag >> 3);
}

PyDoc_STRVAR(kinds_doc,
"kinds(items, /) -> tuple[bytes, int] | None\n\n"
"Return the field number of each item, a byte each, and the bytes of all items.\n\n"
"None: one is not a single length-delimited field in its shortest form, or has a field number of 256 or more.");

static PyObject *kinds(PyObject *module, PyObject *given_items)
{
    PyObject *items, *result;
    Py_ssize_t size = 0;
    uint8_t *to;

    (void)module;
    if ((items = PySequence_Tuple(given_items)) == NULL)
        return NULL;
    if ((result = PyBytes_FromStringAndSize(NULL, PyTuple_GET_SIZE(items))) == NULL)
        goto done;
    to = (uint8_t *)PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        const uint8_t *at;
        int kind;

        if (!PyBytes_Check(item)) {
            PyErr_Format(PyExc_TypeError, "item %zd: got %s, expected bytes", i, Py_TYPE(item)->tp_name);
            Py_CLEAR(result);
            goto done;
        }
        at = (const uint8_t *)PyBytes_AS_STRING(item);
        if ((kind = kind_at(at, at + PyBytes_GET_SIZE(item))) < 0) {
            Py_DECREF(result);
            Py_DECREF(items);
            Py_RETURN_NONE;
        }
        to[i] = (uint8_t)kind;
        size += PyBytes_GET_SIZE(item);
    }
    result = Py_BuildValue("Nn", result, size);
done:
    Py_DECREF(items);
    return result;
}

/* The bytes of a field with this tag, which begin at `*at` then; -1: there is no such field, or it is cut off. */
static inline int64_t length_in(const uint8_t **at, const uint8_t *end, uint8_t tag)
{
    int64_t length;

    if (*at == end || *(*at)++ != tag)
        return -1;
    length = read_varint(at, end);
    return length > end - *at ? -1 : length;
}

PyDoc_STRVAR(split_doc,
"split(message, tag, items_max, /) -> tuple[list[bytes], bytes, int] | None\n\n"
"Return the items of a serialized message with an item set behind `tag`, and what `kinds` returns for them.\n\n"
"None: it has more items; or anything else is in it, or a length not in its shortest form; or `kinds` returns None.");

static PyObject *split(PyObject *module, PyObject *args)
{
    PyObject *message, *items = NULL, *kinds = NULL;
    const uint8_t *at, *end;
    uint8_t *to;
    Py_ssize_t count = 0, size = 0, most;
    int64_t set_size;
    unsigned char tag;

    (void)module;
    if (!PyArg_ParseTuple(args, "Sbn:split", &message, &tag, &most))
        return NULL;
    at = (const uint8_t *)PyBytes_AS_STRING(message);
    end = at + PyBytes_GET_SIZE(message);
    set_size = length_in(&at, end, tag); /* moves `at` */
    if (set_size != end - at)
        Py_RETURN_NONE;
    for (const uint8_t *next = at; next < end; count++) {
        int64_t length = length_in(&next, end, ITEMS_TAG);

        if (length < 0 || count == most)
            Py_RETURN_NONE;
        next += length;
    }
    items = PyList_New(count);
    kinds = items == NULL ? NULL : PyBytes_FromStringAndSize(NULL, count);
    if (kinds == NULL)
        goto failed;
    to = (uint8_t *)PyBytes_AS_STRING(kinds);
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t length = length_in(&at, end, ITEMS_TAG);
        int kind = kind_at(at, at + length);
        PyObject *item;

        if (kind < 0) {
            Py_DECREF(items);
            Py_DECREF(kinds);
            Py_RETURN_NONE;
        }
        if ((item = PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)length)) == NULL)
            goto failed;
        PyList_SET_ITEM(items, i, item);
        to[i] = (uint8_t)kind;
        size += (Py_ssize_t)length;
        at += length;
    }
    return Py_BuildValue("NNn", items, kinds, size);
failed:
    Py_XDECREF(items);
    Py_XDECREF(kinds);
    return NULL;
}

PyDoc_STRVAR(leaves_doc,
"leaves(items, kinds, subtree_of_kind, count, long_size, hash_long, lanes=0, /) -> list[bytes]\n\n"
"Return the leaf hashes of the items of each of `count` subtrees, 48 bytes after 48 bytes.\n\n"
"`kinds` has the field number of each item. Items of subtree -1 have no leaf. `hash_long` hashes items of at\n"
"least `long_size` bytes, which would leave the other lanes empty. `lanes` 0: as many as the processor has.");

static PyObject *leaves(PyObject *module, PyObject *args)
{
    PyObject *given_items, *given_kinds, *subtree_of_kind, *hash_long, *items = NULL, *kinds = NULL, *result = NULL;
    PyObject *last_kind = NULL;
    Message *messages = NULL;
    signed char *subtrees = NULL;
    Py_ssize_t count, long_size, item_count, filled[SUBTREES_MAX] = {0}, sizes[SUBTREES_MAX] = {0};
    uint8_t *places[SUBTREES_MAX] = {0};
    size_t total = 0, message_count = 0;
    int lanes = 0;
    long subtree = -1;

    (void)module;
    if (!PyArg_ParseTuple(args, "OOO!nnO|i:leaves", &given_items, &given_kinds, &PyDict_Type, &subtree_of_kind, &count,
                          &long_size, &hash_long, &lanes))
        return NULL;
    if (count < 1 || count > SUBTREES_MAX)
        return PyErr_Format(PyExc_ValueError, "count: got %zd, expected 1 to %d", count, SUBTREES_MAX);
    if ((lanes = checked_lanes(lanes)) == 0)
        return NULL;
    /* Copies, so that nobody changes them while other threads run. */
    items = PySequence_Tuple(given_items);
    kinds = items == NULL ? NULL : PySequence_Tuple(given_kinds);
    if (kinds == NULL)
        goto done;
    item_count = PyTuple_GET_SIZE(items);
    if (PyTuple_GET_SIZE(kinds) != item_count) {
        PyErr_Format(PyExc_ValueError, "kinds: got %zd, expected %zd, one for each item", PyTuple_GET_SIZE(kinds),
                     item_count);
        goto done;
    }
    messages = PyMem_Malloc((item_count + 1) * sizeof(Message));
    subtrees = PyMem_Malloc(item_count + 1);
    if (messages == NULL || subtrees == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < item_count; i++) {
        PyObject *kind = PyTuple_GET_ITEM(kinds, i), *item = PyTuple_GET_ITEM(items, i);

        if (kind != last_kind) {
            PyObject *found = PyDict_GetItemWithError(subtree_of_kind, kind);
            if (found == NULL) {
                if (!PyErr_Occurred())
                    PyErr_SetObject(PyExc_KeyError, kind);
                goto done;
            }
            subtree = PyLong_AsLong(found);
            if (subtree == -1 && PyErr_Occurred())
                goto done;
            if (subtree < -1 || subtree >= count) {
                PyErr_Format(PyExc_ValueError, "subtree: got %ld, expected -1 to %zd", subtree, count - 1);
                goto done;
            }
            last_kind = kind;
        }
        if (!PyBytes_Check(item)) {
            PyErr_Format(PyExc_TypeError, "item %zd: got %s, expected bytes", i, Py_TYPE(item)->tp_name);
            goto done;
        }
        subtrees[i] = (signed char)subtree;
        if (subtree >= 0)
            sizes[subtree] += HASH;
    }
    result = PyList_New(count);
    for (Py_ssize_t at = 0; result != NULL && at < count; at++) {
        PyObject *joined = PyBytes_FromStringAndSize(NULL, sizes[at]);
        if (joined == NULL) {
            Py_CLEAR(result);
            break;
        }
        places[at] = (uint8_t *)PyBytes_AS_STRING(joined);
        PyList_SET_ITEM(result, at, joined);
    }
    if (result == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < item_count; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        uint8_t *place;

        if (subtrees[i] < 0)
            continue;
        place = places[(int)subtrees[i]] + filled[(int)subtrees[i]];
        filled[(int)subtrees[i]] += HASH;
        if (PyBytes_GET_SIZE(item) >= long_size) {
            PyObject *hash = PyObject_CallOneArg(hash_long, item);
            if (hash == NULL || !PyBytes_Check(hash) || PyBytes_GET_SIZE(hash) != HASH) {
                if (hash != NULL)
                    PyErr_Format(PyExc_ValueError, "hash_long: expected %d bytes", HASH);
                Py_XDECREF(hash);
                Py_CLEAR(result);
                goto done;
            }
            memcpy(place, PyBytes_AS_STRING(hash), HASH);
            Py_DECREF(hash);
        } else {
            Message *message = &messages[message_count++];
            message->data = (const uint8_t *)PyBytes_AS_STRING(item);
            message->size = (size_t)PyBytes_GET_SIZE(item);
            message->hash = place;
            total += message->size;
        }
    }
    if (total < UNLOCKED_BYTES) {
        hash_all(messages, message_count, 0x00, lanes);
    } else {
        Py_BEGIN_ALLOW_THREADS
        hash_all(messages, message_count, 0x00, lanes);
        Py_END_ALLOW_THREADS
    }
done:
    PyMem_Free(messages);
    PyMem_Free(subtrees);
    Py_XDECREF(items);
    Py_XDECREF(kinds);
    return result;
}

/* The hash of 48 bytes at a height of a tree's peaks; NULL: there is none, or an exception is set. */
static const uint8_t *peak_at(PyObject *peaks, Py_ssize_t height)
{
    PyObject *peak = PyList_GET_ITEM(peaks, height);

    if (peak == Py_None)
        return NULL;
    if (!PyBytes_Check(peak) || PyBytes_GET_SIZE(peak) != HASH) {
        PyErr_Format(PyExc_ValueError, "peak %zd: got %s, expected %d bytes or None", height, Py_TYPE(peak)->tp_name,
                     HASH);
        return NULL;
    }
    return (const uint8_t *)PyBytes_AS_STRING(peak);
}

/* Replaces a peak, or appends it: `hash` is NULL for none. */
static int set_peak(PyObject *peaks, Py_ssize_t height, const uint8_t *hash)
{
    PyObject *peak;
    int failed;

    if (hash == NULL)
        peak = Py_NewRef(Py_None);
    else if ((peak = PyBytes_FromStringAndSize((const char *)hash, HASH)) == NULL)
        return -1;
    if (height < PyList_GET_SIZE(peaks))
        return PyList_SetItem(peaks, height, peak); /* takes the reference */
    failed = PyList_Append(peaks, peak);
    Py_DECREF(peak);
    return failed;
}

PyDoc_STRVAR(grow_doc,
"grow(peaks, leaves, lanes=0, /) -> None\n\n"
"Append leaves, 48 bytes after 48 bytes, to a tree of which `peaks` has, by height, the root of a perfect subtree\n"
"or None. Nobody else may use the peaks meanwhile.");

static PyObject *grow(PyObject *module, PyObject *args)
{
    PyObject *peaks, *result = NULL;
    const char *leaves;
    Py_ssize_t size, count;
    int lanes = 0;
    Message *messages;
    uint8_t *nodes, *above;

    (void)module;
    if (!PyArg_ParseTuple(args, "O!y#|i:grow", &PyList_Type, &peaks, &leaves, &size, &lanes))
        return NULL;
    if (size % HASH)
        return PyErr_Format(PyExc_ValueError, "leaves: got %zd bytes, expected hashes of %d", size, HASH);
    if ((lanes = checked_lanes(lanes)) == 0)
        return NULL;
    count = size / HASH;
    /* The nodes of one level and those above, each with room for a peak in front. */
    nodes = PyMem_Malloc((count + 1) * HASH);
    above = PyMem_Malloc((count / 2 + 2) * HASH);
    messages = PyMem_Malloc((count / 2 + 1) * sizeof(Message));
    if (nodes == NULL || above == NULL || messages == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(nodes + HASH, leaves, size);
    for (Py_ssize_t height = 0; count > 0; height++) {
        const uint8_t *peak = height < PyList_GET_SIZE(peaks) ? peak_at(peaks, height) : NULL;
        uint8_t *first = nodes + HASH, *swapped;
        Py_ssize_t pairs;

        if (PyErr_Occurred())
            goto done;
        if (peak != NULL) {
            memcpy(nodes, peak, HASH);
            first = nodes;
            count++;
        }
        pairs = count / 2;
        if (set_peak(peaks, height, count % 2 ? first + 2 * HASH * pairs : NULL) < 0)
            goto done;
        for (Py_ssize_t i = 0; i < pairs; i++) {
            messages[i].data = first + 2 * HASH * i;
            messages[i].size = 2 * HASH;
            messages[i].hash = above + HASH * (i + 1);
        }
        if (2 * HASH * pairs < UNLOCKED_BYTES) {
            hash_all(messages, (size_t)pairs, 0x02, pairs == 1 ? 1 : lanes);
        } else {
            Py_BEGIN_ALLOW_THREADS
            hash_all(messages, (size_t)pairs, 0x02, lanes);
            Py_END_ALLOW_THREADS
        }
        count = pairs;
        swapped = nodes, nodes = above, above = swapped;
    }
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(nodes);
    PyMem_Free(above);
    PyMem_Free(messages);
    return result;
}

PyDoc_STRVAR(root_doc,
"root(peaks, /) -> bytes | None\n\n"
"Return the root over the leaves of the peaks; None: there are none.");

static PyObject *root(PyObject *module, PyObject *peaks)
{
    uint8_t pair[2 * HASH], *found = pair + HASH;
    int is_empty = 1;

    (void)module;
    if (!PyList_Check(peaks))
        return PyErr_Format(PyExc_TypeError, "peaks: got %s, expected a list", Py_TYPE(peaks)->tp_name);
    for (Py_ssize_t height = 0; height < PyList_GET_SIZE(peaks); height++) {
        const uint8_t *peak = peak_at(peaks, height);

        if (PyErr_Occurred())
            return NULL;
        if (peak == NULL)
            continue;
        if (is_empty) {
            memcpy(found, peak, HASH);
            is_empty = 0;
        } else {
            uint8_t hash[HASH];
            Message message = {.data = pair, .size = sizeof(pair), .hash = hash};

            memcpy(pair, peak, HASH);
            hash_all(&message, 1, 0x02, 1);
            memcpy(found, hash, HASH);
        }
    }
    if (is_empty)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)found, HASH);
}

static PyMethodDef methods[] = {
    {"grow", grow, METH_VARARGS, grow_doc},
    {"kinds", kinds, METH_O, kinds_doc},
    {"leaves", leaves, METH_VARARGS, leaves_doc},
    {"root", root, METH_O, root_doc},
    {"split", split, METH_VARARGS, split_doc},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    return PyModule_AddIntConstant(module, "LANES_MAX", lanes_max());
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)prepare},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_many_items", "What is done with each of many items in one call.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__many_items(void)
{
    return PyModuleDef_Init(&definition);
}
