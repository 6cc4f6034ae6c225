/* Makes the Nth system call of one kind on files of one directory fail, for sweep.py: to be preloaded.
   The kinds are numbered as in KINDS there; SHORT writes half of what it is given, and succeeds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE, DATASYNC, SYNC, ALLOCATE, TRUNCATE, RENAME, UNLINK, OPEN, KINDS };
enum { SHORT = -1 };

static int kind_armed = -1, error_armed;
static long nth_armed, times_armed;
static long counts[KINDS];
static char directory[4096];

/* From now on: `error` for the calls `nth` to `nth` + `times` - 1 of `kind`, counted from here. */
void sweep_arm(int kind, long nth, int error, long times, const char *where) {
    memset(counts, 0, sizeof counts);
    snprintf(directory, sizeof directory, "%s", where);
    nth_armed = nth, error_armed = error, times_armed = times, kind_armed = kind;
}

long sweep_count(int kind) { return counts[kind]; }

static int is_ours(const char *path) { return *directory && path && !strncmp(path, directory, strlen(directory)); }

static int is_fd_ours(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_ours(path);
}

/* 0: go on; else the error, or SHORT. */
static int fails(int kind) {
    long n = __atomic_add_fetch(&counts[kind], 1, __ATOMIC_SEQ_CST);
    return kind == kind_armed && n >= nth_armed && n < nth_armed + times_armed ? error_armed : 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define TRY(kind) do { int e = fails(kind); if (e) { errno = e; return -1; } } while (0)

#define WRITER(name, offset_t_)                                                     \
    ssize_t name(int fd, const void *data, size_t size, offset_t_ offset) {         \
        int e = is_fd_ours(fd) ? fails(WRITE) : 0;                                  \
        if (e == SHORT && size > 1) size /= 2;                                      \
        else if (e && e != SHORT) { errno = e; return -1; }                         \
        return REAL(name)(fd, data, size, offset);                                  \
    }
WRITER(pwrite, off_t)
WRITER(pwrite64, off64_t)

int fdatasync(int fd) { if (is_fd_ours(fd)) TRY(DATASYNC); return REAL(fdatasync)(fd); }
int fsync(int fd) { if (is_fd_ours(fd)) TRY(SYNC); return REAL(fsync)(fd); }
int ftruncate(int fd, off_t size) { if (is_fd_ours(fd)) TRY(TRUNCATE); return REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { if (is_fd_ours(fd)) TRY(TRUNCATE); return REAL(ftruncate64)(fd, size); }
int posix_fallocate(int fd, off_t at, off_t size) {
    int e = is_fd_ours(fd) ? fails(ALLOCATE) : 0;
    return e ? e : REAL(posix_fallocate)(fd, at, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    int e = is_fd_ours(fd) ? fails(ALLOCATE) : 0;
    return e ? e : REAL(posix_fallocate64)(fd, at, size);
}
int rename(const char *old, const char *new) { if (is_ours(old)) TRY(RENAME); return REAL(rename)(old, new); }
int unlink(const char *path) { if (is_ours(path)) TRY(UNLINK); return REAL(unlink)(path); }

#define OPENER(name)                                                                \
    int name(const char *path, int flags, ...) {                                    \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;   \
        va_end(rest);                                                               \
        if (is_ours(path)) TRY(OPEN);                                               \
        return REAL(name)(path, flags, mode);                                       \
    }
OPENER(open)
OPENER(open64)
