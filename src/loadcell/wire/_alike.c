/* Reads that are alike -> their texts: `take_in_python` of alike.py, compiled.
 *
 * The same arguments and the same result; alike.py says what they mean, and a test holds the two against each other. A pure function: it
 * looks at bytes, keeps nothing and calls no code of the caller's.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

/* As in alike.py. */
#define MAX_CHUNK 8192
#define MAX_LEAST_DIGITS 4
#define MAX_DIGITS 16

typedef struct {
    const char *bytes;
    Py_ssize_t size;
} Span;

/* What has been taken: UTF-8, escapes resolved. */
typedef struct {
    char *bytes;
    Py_ssize_t size, room;
} Text;

static int
hex_digit(char byte)
{
    return byte >= '0' && byte <= '9' ? byte - '0' : byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* Where the data of a read that is exactly one chunk begins, its size written with `digits` (0: as few as it takes); 0 for any other. */
static Py_ssize_t
data_at(Span read, Py_ssize_t digits)
{
    unsigned long long size = 0;
    Py_ssize_t at = 0;
    for (int digit; at < read.size && at < MAX_DIGITS && (digit = hex_digit(read.bytes[at])) >= 0; at++) {
        size = size << 4 | (unsigned)digit;
    }
    int as_written = digits ? at == digits : at > 0 && at <= MAX_LEAST_DIGITS && read.bytes[0] != '0';
    if (!as_written || size == 0 || size >= MAX_CHUNK || (Py_ssize_t)size != read.size - at - 4) {
        return 0;
    }
    return memcmp(read.bytes + at, "\r\n", 2) == 0 ? at + 2 : 0;
}

/* What stands between the ends of the read; of no size where it is not like the others. */
static Span
between(Span read, Span before, Span after, Py_ssize_t digits)
{
    Span none = {NULL, 0};
    Py_ssize_t at = data_at(read, digits);
    Py_ssize_t size = read.size - at - before.size - after.size;
    if (at == 0 || size <= 0 || memcmp(read.bytes + read.size - after.size, after.bytes, after.size) != 0
        || memcmp(read.bytes + at, before.bytes, before.size) != 0) {
        return none;
    }
    return (Span){read.bytes + at + before.size, size};
}

static int
make_room(Text *text, Py_ssize_t more)
{
    if (text->room - text->size >= more) {
        return 0;
    }
    Py_ssize_t room = 2 * text->room + more + 256;
    char *bytes = PyMem_Realloc(text->bytes, room);
    if (bytes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    text->bytes = bytes;
    text->room = room;
    return 0;
}

/* The byte that an escape of two stands for; 0 for any other. */
static char
escaped(char byte)
{
    switch (byte) {
    case '"':
    case '\\':
    case '/':
        return byte;
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    default:
        return 0;
    }
}

/* Whether the UTF-8 is sound by itself: two halves of a character would be, put together. */
static int
is_sound(const char *bytes, Py_ssize_t size)
{
    PyObject *decoded = PyUnicode_DecodeUTF8(bytes, size, NULL);
    if (decoded != NULL) {
        Py_DECREF(decoded);
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* Append what the inside of a JSON string says: 1, or 0 where it is none or holds `\u`. */
static int
append(Text *text, Span inside)
{
    if (make_room(text, inside.size) < 0) {
        return -1;
    }
    char *begin = text->bytes + text->size, *end = begin;
    unsigned char any = 0;
    for (Py_ssize_t at = 0; at < inside.size; at++) {
        char byte = inside.bytes[at];
        if (byte == '\\') {
            byte = ++at < inside.size ? escaped(inside.bytes[at]) : 0;
            if (byte == 0) {
                return 0;
            }
        }
        else if (byte == '"' || (unsigned char)byte < 0x20) {
            return 0;
        }
        any |= (unsigned char)byte;
        *end++ = byte;
    }
    int sound = any < 0x80 ? 1 : is_sound(begin, end - begin);
    if (sound > 0) {
        text->size += end - begin;
    }
    return sound;
}

/* The index of the first of `reads` from `at` on that is not like the others; -1 for an error. */
static Py_ssize_t
take_reads(Text *text, PyObject *reads, Py_ssize_t at, Span before, Span after, Py_ssize_t digits)
{
    for (Py_ssize_t count = PySequence_Fast_GET_SIZE(reads); at < count; at++) {
        PyObject *item = PySequence_Fast_GET_ITEM(reads, at);
        if (!PyBytes_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "take: a read is bytes");
            return -1;
        }
        Span read = {PyBytes_AS_STRING(item), PyBytes_GET_SIZE(item)};
        Span inside = between(read, before, after, digits);
        int taken = inside.size == 0 ? 0 : append(text, inside);
        if (taken < 0) {
            return -1;
        }
        if (!taken) {
            break;
        }
    }
    return at;
}

static PyObject *
take(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 5 || !PyBytes_Check(args[2]) || !PyBytes_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "take(reads, start, before, after, digits)");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[1]), digits = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (start < 0) {
        PyErr_SetString(PyExc_ValueError, "take: start is negative");
        return NULL;
    }
    Span before = {PyBytes_AS_STRING(args[2]), PyBytes_GET_SIZE(args[2])};
    Span after = {PyBytes_AS_STRING(args[3]), PyBytes_GET_SIZE(args[3])};
    PyObject *reads = PySequence_Fast(args[0], "take: reads are a sequence");
    if (reads == NULL) {
        return NULL;
    }
    Text text = {NULL, 0, 0};
    PyObject *result = NULL;
    Py_ssize_t stop = take_reads(&text, reads, start, before, after, digits);
    PyObject *decoded = stop < 0 ? NULL : PyUnicode_DecodeUTF8(text.bytes, text.size, NULL);
    if (decoded != NULL) {
        result = Py_BuildValue("(nN)", stop, decoded);
    }
    PyMem_Free(text.bytes);
    Py_DECREF(reads);
    return result;
}

static PyMethodDef methods[] = {
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, "Reads that are alike -> their texts: see loadcell.wire.alike."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "loadcell.wire._alike",
    .m_doc = "The part of parsing that runs per token, compiled. Optional: loadcell.wire.alike does without.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__alike(void)
{
    return PyModuleDef_Init(&definition);
}
