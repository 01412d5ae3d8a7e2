/* Stands before the C library of a process under test, and has chosen system calls fail.

   What fails is read from memory shared with the test; disk_support.py tells of it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAIL = 1, TEAR, HOLD, VANISH };
struct control {
    volatile int32_t calls, action, error, skip, times, hits;
    char match[64];
};
static struct control none, *control = &none;

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *place = getenv("FAULTY_DISK");
    if (!place) return;
    REAL(open);
    int fd = real(place, O_RDWR | O_CLOEXEC);
    if (fd < 0) abort();
    void *shared = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) abort();
    control = shared;
    close(fd);
}

/* By the file's own name: all of it, or what comes before an asterisk. */
static int matches(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t size = strlen(control->match);
    if (size && control->match[size - 1] == '*') return !strncmp(name, control->match, size - 1);
    return !strcmp(name, control->match);
}

/* What is to happen to this call; 0 for nothing. */
static int fate(int call, const char *path) {
    if (!(control->calls & 1 << call) || !path || !matches(path)) return 0;
    if (__sync_fetch_and_sub(&control->skip, 1) > 0) return 0;
    if (__sync_fetch_and_sub(&control->times, 1) <= 0) return 0;
    __sync_fetch_and_add(&control->hits, 1);
    if (control->action == HOLD) {
        while (control->action == HOLD) usleep(500);
        return 0;
    }
    if (control->action == VANISH) {
        char away[PATH_MAX + 8];
        snprintf(away, sizeof away, "%s.away", path);
        rename(path, away);
        return 0;
    }
    if (control->action == FAIL) errno = control->error;
    return control->action;
}

static int fate_of(int call, int fd) {
    if (!(control->calls & 1 << call)) return 0;
    char link[40], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    return fate(call, path);
}

#define WRITER(name, off) \
    ssize_t name(int fd, const void *data, size_t size, off at) { \
        REAL(name); \
        int what = fate_of(0, fd); \
        if (what == FAIL) return -1; \
        if (what == TEAR) { \
            real(fd, data, size / 2, at); \
            errno = control->error; \
            return -1; \
        } \
        return real(fd, data, size, at); \
    }
WRITER(pwrite, off_t)
WRITER(pwrite64, off64_t)

#define ONE(call, type, name, parameters, arguments) \
    type name parameters { \
        REAL(name); \
        if (fate_of(call, fd)) return -1; \
        return real arguments; \
    }
ONE(0, ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ONE(1, int, fsync, (int fd), (fd))
ONE(1, int, fdatasync, (int fd), (fd))
ONE(2, int, ftruncate, (int fd, off_t size), (fd, size))
ONE(2, int, ftruncate64, (int fd, off64_t size), (fd, size))
ONE(4, ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
ONE(4, ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
ONE(4, ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))

#define OPENER(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
        va_end(more); \
        if (fate(3, path)) return -1; \
        return real(path, flags, mode); \
    }
OPENER(open)
OPENER(open64)

int unlink(const char *path) {
    REAL(unlink);
    if (fate(5, path)) return -1;
    return real(path);
}
