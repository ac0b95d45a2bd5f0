// Records what a process does to the files below a folder, in the order in which it does it.
//
// Preloaded (LD_PRELOAD), it stands between the process and its C library, so it sees SQLite, the
// server and the backend alike, and nobody can forget to tell it something. For each call that
// changes a file, a name or what is durable, it appends a record to a log:
//
//     kind (1 byte), offset or length (8), length of a path (4), of another (4), of bytes (4), then these three
//
// Calls on the recorded folder are made one at a time, so the log is the order in which they happened.
// POWER_ROOT is the folder and POWER_LOG the log.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind {
  CREATE = 'c', TRUNCATE = 't', WRITE = 'w', SYNC = 's', RENAME = 'r', REMOVE = 'x', FOLDER = 'd',
};

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static int log_file = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("POWER_LOG");
  if (!path || !getenv("POWER_ROOT")) return;
  log_file = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_file < 0) abort();
  root = getenv("POWER_ROOT");
}

static int is_recorded(const char *path) {
  size_t length = root ? strlen(root) : 0;
  return root && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

// Finds the path of an open file.
static int path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length < 0 ? 0 : length] = 0;
  return length > 0;
}

static int is_recorded_file(int fd) {
  char path[PATH_MAX];
  return root && path_of(fd, path) && is_recorded(path);
}

// Where an open file is at this moment of the log.
static const char *name_of(int fd) {
  static char path[PATH_MAX];
  path_of(fd, path);
  return path;
}

// Makes a path whole that is relative to a folder.
static int whole(int folder, const char *path, char *result) {
  if (!root) return 0;
  if (path[0] == '/') {
    snprintf(result, PATH_MAX, "%s", path);
  } else {
    char base[PATH_MAX];
    int found = folder == AT_FDCWD ? getcwd(base, sizeof base) != NULL : path_of(folder, base);
    if (!found || snprintf(result, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
  }
  return is_recorded(result);
}

static void append(const void *bytes, size_t length) {
  const char *rest = bytes;
  while (length) {
    ssize_t written = REAL(write)(log_file, rest, length);
    if (written <= 0) abort();
    rest += written;
    length -= written;
  }
}

static void record(enum kind kind, uint64_t number, const char *path, const char *other,
                   const void *bytes, uint32_t length) {
  char head[21];
  uint32_t lengths[] = {strlen(path), strlen(other), length};
  head[0] = kind;
  memcpy(head + 1, &number, sizeof number);
  memcpy(head + 9, lengths, sizeof lengths);
  append(head, sizeof head);
  append(path, lengths[0]);
  append(other, lengths[1]);
  append(bytes, length);
}

static void begin(void) { pthread_mutex_lock(&one_at_a_time); }

// Ends a call, with the error that the caller is to see.
static void end(int error) {
  pthread_mutex_unlock(&one_at_a_time);
  errno = error;
}

// Makes a call, and records what it did if it succeeded.
#define RECORDED(type, call, ...)          \
  do {                                     \
    begin();                               \
    type result = (call);                  \
    int error = errno;                     \
    if (result >= 0) { __VA_ARGS__; }      \
    end(error);                            \
    return result;                         \
  } while (0)

static int open_recorded(int result, const char *path, int flags, int existed) {
  if (result < 0) return result;
  if ((flags & O_CREAT) && !existed) record(CREATE, 0, path, "", "", 0);
  else if (flags & O_TRUNC) record(TRUNCATE, 0, path, "", "", 0);
  return result;
}

#define OPEN(name, folder, path, ...)                                            \
  mode_t mode = 0;                                                               \
  if (flags & (O_CREAT | __O_TMPFILE)) {                                         \
    va_list rest;                                                                \
    va_start(rest, flags);                                                       \
    mode = va_arg(rest, mode_t);                                                 \
    va_end(rest);                                                                \
  }                                                                              \
  char full[PATH_MAX];                                                           \
  if (!(flags & (O_CREAT | O_TRUNC)) || !whole(folder, path, full))              \
    return REAL(name)(__VA_ARGS__, flags, mode);                                 \
  begin();                                                                       \
  int existed = !access(full, F_OK);                                             \
  int result = open_recorded(REAL(name)(__VA_ARGS__, flags, mode), full, flags, existed); \
  int error = errno;                                                             \
  end(error);                                                                    \
  return result;

int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD, path, path) }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD, path, path) }
int openat(int folder, const char *path, int flags, ...) { OPEN(openat, folder, path, folder, path) }
int openat64(int folder, const char *path, int flags, ...) { OPEN(openat64, folder, path, folder, path) }

ssize_t write(int fd, const void *bytes, size_t length) {
  if (!is_recorded_file(fd)) return REAL(write)(fd, bytes, length);
  // Afterwards the position is the end of what was written, also of what was appended.
  RECORDED(ssize_t, REAL(write)(fd, bytes, length),
           record(WRITE, lseek(fd, 0, SEEK_CUR) - result, name_of(fd), "", bytes, result));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (!is_recorded_file(fd)) return REAL(writev)(fd, parts, count);
  // It may write less than it is asked to: the first part that has bytes will do.
  for (; count > 1 && !parts->iov_len; parts++) count--;
  return count < 1 ? 0 : write(fd, parts->iov_base, parts->iov_len);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
  if (!is_recorded_file(fd)) return REAL(pwrite)(fd, bytes, length, offset);
  RECORDED(ssize_t, REAL(pwrite)(fd, bytes, length, offset),
           record(WRITE, offset, name_of(fd), "", bytes, result));
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
  return pwrite(fd, bytes, length, offset);
}

int ftruncate(int fd, off_t length) {
  if (!is_recorded_file(fd)) return REAL(ftruncate)(fd, length);
  RECORDED(int, REAL(ftruncate)(fd, length), record(TRUNCATE, length, name_of(fd), "", "", 0));
}

int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

int fsync(int fd) {
  if (!is_recorded_file(fd)) return REAL(fsync)(fd);
  // Nothing of it is ever lost in earnest, so it need not reach the disk.
  RECORDED(int, 0, record(SYNC, 0, name_of(fd), "", "", 0));
}

int fdatasync(int fd) { return fsync(fd); }

int rename(const char *from, const char *to) {
  char old[PATH_MAX], new[PATH_MAX];
  int is_from = whole(AT_FDCWD, from, old), is_to = whole(AT_FDCWD, to, new);
  if (!is_from && !is_to) return REAL(rename)(from, to);
  RECORDED(int, REAL(rename)(from, to), record(RENAME, 0, old, new, "", 0));
}

int unlinkat(int folder, const char *path, int flags) {
  char full[PATH_MAX];
  if (!whole(folder, path, full)) return REAL(unlinkat)(folder, path, flags);
  RECORDED(int, REAL(unlinkat)(folder, path, flags), record(REMOVE, 0, full, "", "", 0));
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char *path, mode_t mode) {
  char full[PATH_MAX];
  if (!whole(AT_FDCWD, path, full)) return REAL(mkdir)(path, mode);
  RECORDED(int, REAL(mkdir)(path, mode), record(FOLDER, 0, full, "", "", 0));
}

// Ways around the calls above. Whoever tries them is sent back to those.
ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t length,
                        unsigned int flags) {
  (void)from, (void)from_offset, (void)to, (void)to_offset, (void)length, (void)flags;
  errno = ENOSYS;
  return -1;
}

ssize_t sendfile(int to, int from, off_t *offset, size_t length) {
  (void)to, (void)from, (void)offset, (void)length;
  errno = ENOSYS;
  return -1;
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t length) {
  return sendfile(to, from, offset, length);
}

int link(const char *from, const char *to) { (void)from, (void)to; abort(); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
  (void)a, (void)from, (void)b, (void)to, (void)flags;
  abort();
}
