# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Read and write whole messages of a ZeroMQ socket by calls of libzmq.

``messages.py`` has the same class in Python.  It is the specification and the fallback; the tests compare both.

WARNING: this module uses parts of pyzmq that are not its public API, because a frame costs four times as much with
pyzmq's Frame as with libzmq alone.  It relies on:

    zmq.backend.cython._zmq.__file__    the extension module that pyzmq has linked libzmq into, or with.  The functions
                                        of libzmq are looked up there, so they belong to the copy of libzmq whose
                                        sockets these are; nothing is linked when this module is built
    Socket.underlying                   the address of libzmq's socket, which pyzmq documents
    Socket._closed                      whether that address is still valid

If a later pyzmq moves or hides ``_zmq`` or its symbols, the import of this module fails with ImportError, the event bus
uses ``messages.py``, and the log says so.  If it renames ``_closed``, every call raises AttributeError.
``tests/protocols/eventbus/test_messages.py`` fails in both cases.
"""

import ctypes
import errno

import zmq
from zmq.backend.cython import _zmq

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdlib cimport atoll, calloc
from libc.string cimport memcpy, strcmp

cdef extern from *:
    """
    /* zmq_msg_t of zmq.h, the same since libzmq 4.1; its content is private to libzmq. */
    typedef union { unsigned char bytes[64]; void *pointer; } message_t;

    /* What libzmq holds of the messages that were lent to it.  It frees them in threads of its own, without the GIL,
       and possibly after the Messages that sent them: so each message owns a share of the count, as its Messages does. */
    typedef struct { long long messages, size; long owners; } lent_t;
    typedef struct { lent_t *lent; long long size; char data[]; } parcel_t;

    static void disown(lent_t *lent) {
        if (__atomic_sub_fetch(&lent->owners, 1, __ATOMIC_ACQ_REL) == 0) free(lent);
    }

    static parcel_t *make_parcel(lent_t *lent, const void *data, size_t length, long long size) {
        parcel_t *parcel = malloc(sizeof(parcel_t) + length);
        if (parcel == NULL) return NULL;
        parcel->lent = lent;
        parcel->size = size;
        memcpy(parcel->data, data, length);
        __atomic_add_fetch(&lent->messages, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&lent->size, size, __ATOMIC_RELAXED);
        __atomic_add_fetch(&lent->owners, 1, __ATOMIC_RELAXED);
        return parcel;
    }

    /* The zmq_free_fn of a parcel. */
    static void release_parcel(void *data, void *hint) {
        parcel_t *parcel = hint;
        lent_t *lent = parcel->lent;
        __atomic_sub_fetch(&lent->messages, 1, __ATOMIC_RELAXED);
        __atomic_sub_fetch(&lent->size, parcel->size, __ATOMIC_RELAXED);
        free(parcel);
        disown(lent);
    }

    static long long read_count(long long *count) { return __atomic_load_n(count, __ATOMIC_RELAXED); }
    """
    ctypedef struct message_t:
        pass
    ctypedef struct lent_t:
        long long messages
        long long size
        long owners
    ctypedef struct parcel_t:
        char* data
    void disown(lent_t*) noexcept
    parcel_t* make_parcel(lent_t*, const void*, size_t, long long) noexcept nogil
    void release_parcel(void*, void*) noexcept
    long long read_count(long long*) noexcept

NOWHERE = ("", -1, 0)

cdef enum:
    DONTWAIT = 1
    SNDMORE = 2
    SRCFD = 2
    # Copies of at least so many bytes let other threads run meanwhile: a commit waits for the interpreter several times.
    LARGE = 256 << 10

cdef int EMPTY = errno.EAGAIN
cdef int INTERRUPTED = errno.EINTR

cdef int (*msg_init)(message_t*) noexcept
cdef int (*msg_close)(message_t*) noexcept
cdef int (*msg_recv)(message_t*, void*, int) noexcept
cdef int (*msg_more)(message_t*) noexcept
cdef void* (*msg_data)(message_t*) noexcept
cdef size_t (*msg_size)(message_t*) noexcept
cdef int (*msg_get)(message_t*, int) noexcept
cdef const char* (*msg_gets)(message_t*, const char*) noexcept
cdef int (*send_bytes)(void*, const void*, size_t, int) noexcept
cdef int (*msg_init_data)(message_t*, void*, size_t, void (*)(void*, void*) noexcept, void*) noexcept
cdef int (*msg_send)(message_t*, void*, int) noexcept
cdef int (*set_option)(void*, int, const void*, size_t) noexcept
cdef int (*last_error)() noexcept


cdef size_t find(library, name) except 0:
    return ctypes.cast(library[name], ctypes.c_void_p).value


cdef int find_all() except -1:
    global msg_init, msg_close, msg_recv, msg_more, msg_data, msg_size, msg_get, msg_gets, send_bytes, last_error
    global msg_init_data, msg_send, set_option
    if zmq.zmq_version_info() < (4, 1):
        raise ImportError("a message of this libzmq has another size")
    try:
        library = ctypes.CDLL(_zmq.__file__)
        msg_init = <int (*)(message_t*) noexcept>find(library, "zmq_msg_init")
        msg_close = <int (*)(message_t*) noexcept>find(library, "zmq_msg_close")
        msg_recv = <int (*)(message_t*, void*, int) noexcept>find(library, "zmq_msg_recv")
        msg_more = <int (*)(message_t*) noexcept>find(library, "zmq_msg_more")
        msg_data = <void* (*)(message_t*) noexcept>find(library, "zmq_msg_data")
        msg_size = <size_t (*)(message_t*) noexcept>find(library, "zmq_msg_size")
        msg_get = <int (*)(message_t*, int) noexcept>find(library, "zmq_msg_get")
        msg_gets = <const char* (*)(message_t*, const char*) noexcept>find(library, "zmq_msg_gets")
        send_bytes = <int (*)(void*, const void*, size_t, int) noexcept>find(library, "zmq_send")
        msg_init_data = <int (*)(message_t*, void*, size_t, void (*)(void*, void*) noexcept, void*) noexcept>find(
            library, "zmq_msg_init_data"
        )
        msg_send = <int (*)(message_t*, void*, int) noexcept>find(library, "zmq_msg_send")
        set_option = <int (*)(void*, int, const void*, size_t) noexcept>find(library, "zmq_setsockopt")
        last_error = <int (*)() noexcept>find(library, "zmq_errno")
    except (AttributeError, OSError) as error:
        raise ImportError(f"pyzmq hides the functions of its libzmq: {error}") from error
    return 0


find_all()


cdef bytes copy(const void* data, Py_ssize_t size):
    cdef bytes copied = PyBytes_FromStringAndSize(NULL, size)
    cdef char* to = PyBytes_AS_STRING(copied)
    if size < LARGE:
        memcpy(to, data, size)
    else:
        with nogil:
            memcpy(to, data, size)
    return copied


# The GIL is not released, except to copy large frames: no call blocks, and each takes less time than releasing and
# acquiring it.
cdef class Messages:
    cdef object socket
    cdef void* handle
    cdef Py_ssize_t kept
    cdef list frames
    cdef Py_ssize_t count
    cdef tuple origin
    cdef bytes user
    cdef bytes address
    cdef lent_t* lent

    def __cinit__(self, *_):
        self.lent = <lent_t*>calloc(1, sizeof(lent_t))
        if self.lent == NULL:
            raise MemoryError
        self.lent.owners = 1

    def __dealloc__(self):
        if self.lent != NULL:
            disown(self.lent)

    def __init__(self, socket, Py_ssize_t kept):
        self.socket = socket
        self.handle = <void*><size_t>socket.underlying
        self.kept = kept
        self.frames = []
        self.count = 0
        self.origin = NOWHERE
        self.user, self.address = b"", b""

    cdef int find_origin(self, message_t* message) except -1:
        # Most messages come from the same connection as the one before, so the origin is used again.
        cdef const char* user = msg_gets(message, b"User-Id")
        cdef const char* address
        if user == NULL:
            user = b""
        if user[0] and not strcmp(user, self.user):
            return 0
        address = msg_gets(message, b"Peer-Address")
        if address == NULL:
            address = b""
        if not user[0] and not self.user and not strcmp(address, self.address):
            return 0
        self.user, self.address = user, address
        self.origin = (
            self.address.decode("ascii", "replace"),
            msg_get(message, SRCFD) if self.user else -1,
            atoll(self.user),
        )
        return 0

    cdef int check_open(self) except -1:
        # The address of a closed socket is dangling.
        if self.socket._closed:
            raise zmq.ZMQError(errno.ENOTSOCK)
        return 0

    def receive(self, Py_ssize_t frames, Py_ssize_t size):
        cdef list messages = []
        cdef message_t message
        cdef int error
        cdef bytes data
        self.check_open()
        msg_init(&message)
        try:
            while frames > 0 and size > 0:
                if msg_recv(&message, self.handle, DONTWAIT) < 0:
                    error = last_error()
                    if error == INTERRUPTED:
                        PyErr_CheckSignals()
                        continue
                    if error == EMPTY or messages:
                        break
                    raise zmq.ZMQError(error)
                if not self.count:
                    self.find_origin(&message)
                if self.count < self.kept:
                    data = copy(msg_data(&message), <Py_ssize_t>msg_size(&message))
                    self.frames.append(data)
                    size -= len(data)
                self.count += 1
                frames -= 1
                if not msg_more(&message):
                    messages.append((self.frames, self.count, self.origin))
                    self.frames = []
                    self.count = 0
        finally:
            msg_close(&message)
        return messages, frames, size

    def send(self, frames, bint more=False):
        cdef Py_ssize_t left = len(frames)
        self.check_open()
        for frame in frames:
            left -= 1
            self.send_one(frame, DONTWAIT | SNDMORE if more or left else DONTWAIT)

    cdef int send_one(self, frame, int flags) except -1:
        cdef Py_buffer view
        cdef int error = 0
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            while send_bytes(self.handle, view.buf, view.len, flags) < 0:
                error = last_error()
                if error == EMPTY:
                    raise zmq.Again
                if error != INTERRUPTED:
                    raise zmq.ZMQError(error)
                PyErr_CheckSignals()
        finally:
            PyBuffer_Release(&view)
        return 0

    def lend(self, frames):
        cdef Py_buffer view
        cdef message_t message
        cdef parcel_t* parcel
        cdef Py_ssize_t last = len(frames) - 1
        cdef long long size = 0
        cdef int error
        for frame in frames:
            size += len(frame)
        self.send(frames[:last], True)
        PyObject_GetBuffer(frames[last], &view, PyBUF_SIMPLE)
        if view.len < LARGE:
            parcel = make_parcel(self.lent, view.buf, view.len, size)
        else:
            with nogil:
                parcel = make_parcel(self.lent, view.buf, view.len, size)
        error = parcel == NULL or msg_init_data(&message, parcel.data, view.len, release_parcel, parcel)
        PyBuffer_Release(&view)
        if error:
            if parcel != NULL:
                release_parcel(parcel.data, parcel)
            raise MemoryError
        try:
            while msg_send(&message, self.handle, DONTWAIT) < 0:
                error = last_error()
                if error != INTERRUPTED:
                    raise zmq.Again if error == EMPTY else zmq.ZMQError(error)
                PyErr_CheckSignals()
        finally:
            msg_close(&message)  # a message that was sent is empty now

    def set_all(self, int option, values):
        cdef const char* value
        cdef int error
        self.check_open()
        for each in values:
            value = each
            while set_option(self.handle, option, value, len(each)) < 0:
                error = last_error()
                if error != INTERRUPTED:
                    raise zmq.ZMQError(error)
                PyErr_CheckSignals()

    def held(self):
        return read_count(&self.lent.messages), read_count(&self.lent.size)
