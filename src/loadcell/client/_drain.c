/* Ready sockets -> reads and their stamps: `sweep` of sweep.py, compiled.
 *
 * The same arguments, the same results, in the same order; sweep.py says what they mean, and a test holds the two against each other.
 * Per token this costs one recvmsg and a handful of allocations. It keeps the GIL: it never waits, and a read takes about as long as
 * letting go of the lock and taking it again. It calls no code of the caller's but the `append` of a stream's stamps.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

/* As in sweep.py and connection.py. */
#define READ_SIZE 65536
#define BIG_READ 4096
#define MAX_EVENTS 16384
#define STAMP_KIND 35 /* SCM_TIMESTAMPNS with 64-bit seconds and nanoseconds */
#define NS_PER_S 1000000000LL

/* Where a stream's parts stand in its tuple (`HotStream`). */
enum { EXCHANGE, RECEIVE, DATAS, ADD_STAMP, CLOCK_READS, CHUNKED, PARTS };

/* Of each thread its own: collecting garbage amid a sweep may let another thread in. */
static _Thread_local struct epoll_event events[MAX_EVENTS];
static _Thread_local char buffer[READ_SIZE];

typedef struct {
    long long previous_ns, offset_ns, polled_ns;
    Py_ssize_t reads, clock_reads;
    PyObject *rest;
} Sweep;

static long long
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* Append `item` and let go of it; null is an error that has been set. */
static int
append_new(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Leave (exchange, what) to the caller, and let go of `what`. */
static int
leave(Sweep *sweep, PyObject *exchange, PyObject *what)
{
    PyObject *entry = what == NULL ? NULL : PyTuple_Pack(2, exchange, what);
    Py_XDECREF(what);
    return append_new(sweep->rest, entry);
}

/* The kernel's stamp of the message on the monotonic clock; 0 where there is none, which no poll's time is. */
static long long
kernel_stamp(const Sweep *sweep, struct msghdr *message)
{
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int64_t parts[2];
    if (header == NULL || header->cmsg_level != SOL_SOCKET || header->cmsg_type != STAMP_KIND
        || header->cmsg_len != CMSG_LEN(sizeof parts)) {
        return 0;
    }
    memcpy(parts, CMSG_DATA(header), sizeof parts);
    return parts[0] * NS_PER_S + parts[1] - sweep->offset_ns;
}

/* Keep a read: its bytes and when they came. */
static int
keep(Sweep *sweep, PyObject *stream, PyObject *data, struct msghdr *message)
{
    PyObject *datas = PyTuple_GET_ITEM(stream, DATAS);
    long long stamp = kernel_stamp(sweep, message);
    int own = stamp == 0;
    if (own) {
        stamp = now_ns();
    }
    else if (stamp < sweep->previous_ns || stamp > sweep->polled_ns) {
        /* Between the last poll and this read, or it is not to be believed (a stepped clock). */
        long long now = now_ns();
        if (stamp < sweep->previous_ns || stamp > now) {
            stamp = now;
            own = 1;
        }
    }
    PyObject *number = PyLong_FromLongLong(stamp);
    if (number == NULL) {
        return -1;
    }
    PyObject *none = PyObject_CallOneArg(PyTuple_GET_ITEM(stream, ADD_STAMP), number);
    Py_DECREF(number);
    if (none == NULL) {
        return -1;
    }
    Py_DECREF(none);
    sweep->reads++;
    if (own) {
        sweep->clock_reads++;
        if (append_new(PyTuple_GET_ITEM(stream, CLOCK_READS), PyLong_FromSsize_t(PyList_GET_SIZE(datas))) < 0) {
            return -1;
        }
    }
    return PyList_Append(datas, data);
}

/* One read of one stream. */
static int
read_stream(Sweep *sweep, int fd, PyObject *stream)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int64_t))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {buffer, READ_SIZE};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    PyObject *exchange = PyTuple_GET_ITEM(stream, EXCHANGE);
    ssize_t size;
    do {
        size = recvmsg(fd, &message, MSG_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return 0;
    }
    if (size <= 0) {
        return leave(sweep, exchange, PyLong_FromLong(size < 0 ? errno : 0));
    }
    PyObject *data = PyBytes_FromStringAndSize(buffer, size);
    if (data == NULL) {
        return -1;
    }
    int failed = keep(sweep, stream, data, &message);
    if (!failed
        && (size > BIG_READ || size < 4 || PyTuple_GET_ITEM(stream, CHUNKED) != Py_True
            || memcmp(buffer + size - 4, "\r\n\r\n", 4) == 0)) {
        return leave(sweep, exchange, data);
    }
    Py_DECREF(data);
    return failed;
}

/* One descriptor that is ready. */
static int
take(Sweep *sweep, PyObject *hot, int fd)
{
    PyObject *key = PyLong_FromLong(fd);
    if (key == NULL) {
        return -1;
    }
    PyObject *stream = PyDict_GetItemWithError(hot, key);
    if (stream == NULL) {
        if (PyErr_Occurred()) {
            Py_DECREF(key);
            return -1;
        }
        return append_new(sweep->rest, key);
    }
    Py_DECREF(key);
    if (!PyTuple_Check(stream) || PyTuple_GET_SIZE(stream) != PARTS || !PyList_Check(PyTuple_GET_ITEM(stream, DATAS))
        || !PyList_Check(PyTuple_GET_ITEM(stream, CLOCK_READS))) {
        PyErr_SetString(PyExc_TypeError, "sweep: not a HotStream");
        return -1;
    }
    Py_INCREF(stream);
    int failed = read_stream(sweep, fd, stream);
    Py_DECREF(stream);
    return failed;
}

static PyObject *
sweep_ready(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Sweep sweep = {0};
    if (count != 4 || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "sweep(epoll, hot, previous_ns, offset_ns)");
        return NULL;
    }
    int epoll = PyObject_AsFileDescriptor(args[0]);
    if (epoll < 0) {
        return NULL;
    }
    sweep.previous_ns = PyLong_AsLongLong(args[2]);
    sweep.offset_ns = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int ready;
    while ((ready = epoll_wait(epoll, events, MAX_EVENTS, 0)) < 0) {
        if (errno != EINTR) {
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        if (PyErr_CheckSignals() < 0) {
            return NULL;
        }
    }
    sweep.polled_ns = now_ns();
    sweep.rest = PyList_New(0);
    if (sweep.rest == NULL) {
        return NULL;
    }
    for (int at = 0; at < ready; at++) {
        if (take(&sweep, args[1], events[at].data.fd) < 0) {
            Py_DECREF(sweep.rest);
            return NULL;
        }
    }
    return Py_BuildValue("(innN)", ready, sweep.reads, sweep.clock_reads, sweep.rest);
}

static PyMethodDef methods[] = {
    {"sweep", (PyCFunction)(void (*)(void))sweep_ready, METH_FASTCALL, "One look at the sockets: see loadcell.client.sweep."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "loadcell.client._drain",
    .m_doc = "The part of the client that runs per token, compiled. Optional: loadcell.client.sweep does without.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__drain(void)
{
    return PyModuleDef_Init(&definition);
}
