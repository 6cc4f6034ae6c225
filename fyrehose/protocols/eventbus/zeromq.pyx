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
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.string cimport strcmp

cdef extern from *:
    """
    /* zmq_msg_t of zmq.h, the same since libzmq 4.1; its content is private to libzmq. */
    typedef union { unsigned char bytes[64]; void *pointer; } message_t;
    """
    ctypedef struct message_t:
        pass

NOWHERE = ("", -1)

cdef enum:
    DONTWAIT = 1
    SNDMORE = 2
    SRCFD = 2

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
cdef int (*last_error)() noexcept


cdef size_t find(library, name) except 0:
    return ctypes.cast(library[name], ctypes.c_void_p).value


cdef int find_all() except -1:
    global msg_init, msg_close, msg_recv, msg_more, msg_data, msg_size, msg_get, msg_gets, send_bytes, last_error
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
        last_error = <int (*)() noexcept>find(library, "zmq_errno")
    except (AttributeError, OSError) as error:
        raise ImportError(f"pyzmq hides the functions of its libzmq: {error}") from error
    return 0


find_all()


# The GIL is not released: no call blocks, and each takes less time than releasing and acquiring it.
cdef class Messages:
    cdef object socket
    cdef void* handle
    cdef Py_ssize_t kept
    cdef list frames
    cdef Py_ssize_t count
    cdef tuple origin
    cdef bytes address

    def __init__(self, socket, Py_ssize_t kept):
        self.socket = socket
        self.handle = <void*><size_t>socket.underlying
        self.kept = kept
        self.frames = []
        self.count = 0
        self.origin = NOWHERE
        self.address = b""

    cdef int find_origin(self, message_t* message) except -1:
        # Most messages come from the same connection as the one before, so the origin is used again.
        cdef const char* address = msg_gets(message, b"Peer-Address")
        cdef int descriptor
        if address == NULL:
            self.origin, self.address = NOWHERE, b""
            return 0
        descriptor = msg_get(message, SRCFD)
        if descriptor != <int>self.origin[1] or strcmp(address, self.address):
            self.address = address
            self.origin = (self.address.decode("ascii", "replace"), descriptor)
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
                    data = PyBytes_FromStringAndSize(<const char*>msg_data(&message), <Py_ssize_t>msg_size(&message))
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
