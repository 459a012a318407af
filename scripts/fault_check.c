/* Preloaded by fault_check.py: of the calls that touch a folder, one fails, or ends the process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ONCE, FROM_THEN_ON, KILL_BEFORE, KILL_AFTER };

static char folder[PATH_MAX], last[PATH_MAX];
static int number, error, way, seen;

void fault_arm(const char *path, int call, int code, int how) {
    strncpy(folder, path, sizeof folder - 1);
    number = call, error = code, way = how, seen = 0;
}

int fault_seen(void) { return seen; }
const char *fault_last(void) { return last; }

/* True if a path, from an open folder or the current one, lies in the folder that is watched. */
static int touches(int from, const char *path) {
    char link[64], begin[2 * PATH_MAX] = "";
    if (!*folder || (from < 0 && from != AT_FDCWD)) return 0;
    if (!path || *path != '/') {
        snprintf(link, sizeof link, from == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", from);
        ssize_t length = readlink(link, begin, PATH_MAX);
        if (length < 0) return 0;
        begin[length] = '/', begin[length + 1] = 0;
    }
    if (path) strncat(begin, path, PATH_MAX - 1);
    return !strncmp(begin, folder, strlen(folder)) && (snprintf(last, sizeof last, "%.4000s", begin), 1);
}

/* True if this call, which touches the folder, is to fail. */
static int fails(const char *call) {
    if (++seen == number) {
        char where[PATH_MAX];
        strcpy(where, last);
        snprintf(last, sizeof last, "%s %.4000s", call, where);
    }
    if (seen == number && way == KILL_BEFORE) kill(getpid(), SIGKILL);
    errno = error;
    return (seen == number && way == ONCE) || (number && seen >= number && way == FROM_THEN_ON);
}

static void after(void) {
    if (seen == number && way == KILL_AFTER) kill(getpid(), SIGKILL);
}

#define CALL(type, name, parameters, arguments, touched, failed) \
    type name parameters { \
        static type (*real) parameters; \
        if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
        int watched = touched; \
        if (watched && fails(#name)) { failed; } \
        type result = real arguments; \
        int kept = errno; \
        if (watched) after(); \
        errno = kept; \
        return result; \
    }
#define AT(type, name, parameters, arguments, from, path) \
    CALL(type, name, parameters, arguments, touches(from, path), return (type)-1)
#define OF(type, name, parameters, arguments, descriptor) AT(type, name, parameters, arguments, descriptor, NULL)
#define OPEN(name, parameters, from, ...) \
    int name parameters { \
        static int (*real)(__VA_ARGS__, int, ...); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int watched = touches(from, path); \
        if (watched && fails(#name)) return -1;

#define OPENED(...) \
        int result = real(__VA_ARGS__, flags, mode), kept = errno; \
        if (watched) after(); \
        errno = kept; \
        return result; \
    }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD, const char *) OPENED(path)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, const char *) OPENED(path)
OPEN(openat, (int from, const char *path, int flags, ...), from, int, const char *) OPENED(from, path)
OPEN(openat64, (int from, const char *path, int flags, ...), from, int, const char *) OPENED(from, path)
AT(int, unlink, (const char *path), (path), AT_FDCWD, path)
AT(int, unlinkat, (int from, const char *path, int flags), (from, path, flags), from, path)
AT(int, mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
AT(int, rmdir, (const char *path), (path), AT_FDCWD, path)
AT(int, chmod, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
AT(int, fchmodat, (int from, const char *path, mode_t mode, int flags), (from, path, mode, flags), from, path)
AT(int, stat, (const char *path, struct stat *found), (path, found), AT_FDCWD, path)
AT(int, stat64, (const char *path, struct stat64 *found), (path, found), AT_FDCWD, path)
AT(int, lstat, (const char *path, struct stat *found), (path, found), AT_FDCWD, path)
AT(int, lstat64, (const char *path, struct stat64 *found), (path, found), AT_FDCWD, path)
CALL(int, rename, (const char *path, const char *to), (path, to),
     touches(AT_FDCWD, path) || touches(AT_FDCWD, to), return -1)
CALL(DIR *, opendir, (const char *path), (path), touches(AT_FDCWD, path), return NULL)
CALL(DIR *, fdopendir, (int file), (file), touches(file, NULL), return NULL)
OF(ssize_t, read, (int file, void *data, size_t size), (file, data, size), file)
OF(ssize_t, write, (int file, const void *data, size_t size), (file, data, size), file)
OF(int, fsync, (int file), (file), file)
OF(int, flock, (int file, int operation), (file, operation), file)
OF(int, ftruncate, (int file, off_t size), (file, size), file)
OF(int, ftruncate64, (int file, off64_t size), (file, size), file)
CALL(int, close, (int file), (file), touches(file, NULL), int code = errno; real(file); errno = code; return -1)
