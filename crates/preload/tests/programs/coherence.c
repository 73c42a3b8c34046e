// A file that is mapped and also read, written, cut and copied by system calls and streams: everything shows the same bytes
// as a shadow in memory. It passes on kernel mmap; under the preload library it must do the same.
// Usage: coherence CASE FILE; SEED and STEPS in the environment.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 3 << 20, LONGEST = 40000 };

static uint64_t seed = 1;
static long step, steps = 3000;
static int op;
static unsigned char *map, *shadow;
static size_t size;
static int fd, append_fd, direct_fd, other_fd;
static const char *path;

#define CHECK(what)                                                                                     \
    do {                                                                                                \
        if (!(what)) {                                                                                  \
            dprintf(2, "step %ld, operation %d, line %d: %s: errno %d (%s), size %zu\n", step, op, __LINE__, #what, errno, strerror(errno), size); \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

static uint64_t random_number(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t below(size_t end) { return end ? random_number(&seed) % end : 0; }

static void same(const unsigned char *found, size_t at, size_t len, int line) {
    for (size_t i = 0; i < len; i++) {
        if (found[i] != shadow[at + i]) {
            dprintf(2, "step %ld, operation %d, line %d: byte %zu (page %zu + %zu) is %u, not %u; of %zu+%zu, size %zu\n", step, op, line,
                    at + i, (at + i) / PAGE, (at + i) % PAGE, found[i], shadow[at + i], at, len, size);
            exit(1);
        }
    }
}
#define SAME(found, at, len) same(found, at, len, __LINE__)

static unsigned char bytes[LONGEST + 2 * PAGE] __attribute__((aligned(4096)));

static void new_bytes(size_t len) {
    unsigned char first = (unsigned char)random_number(&seed);
    for (size_t i = 0; i < len; i++) bytes[i] = (unsigned char)(first + i * 13 + (i >> 8));
}

// Two ranges of the file that do not overlap.
static size_t apart(size_t at, size_t len) {
    for (int tries = 0; tries < 100; tries++) {
        size_t other = below(size - len);
        if (other + len <= at || at + len <= other) return other;
    }
    return (size_t)-1;
}

static void resize(size_t new_size) {
    if (new_size > size) memset(shadow + size, 0, new_size - size);
    size = new_size;
}

static void everything(void) {
    SAME(map, 0, size);
    for (size_t at = 0; at < size;) {
        size_t len = size - at < LONGEST ? size - at : LONGEST;
        CHECK(pread(fd, bytes, len, at) == (ssize_t)len);
        SAME(bytes, at, len);
        at += len;
    }
}

static void one(void) {
    if (size < 3 * LONGEST) {
        size_t more = 4 * LONGEST + below(MOST - 4 * LONGEST);
        CHECK(ftruncate(fd, more) == 0);
        resize(more);
    }
    size_t len = below(4) ? 1 + below(5000) : 1 + below(LONGEST - 1), at = below(size - len), other;
    new_bytes(len);
    off_t offset = at, target;
    int fds[2];
    FILE *stream;
    op = below(27);
    switch (op) {
    case 0:
    case 1:
    case 2:
        memcpy(map + at, bytes, len);
        memcpy(shadow + at, bytes, len);
        break;
    case 3:
        SAME(map + at, at, len);
        break;
    case 4:
        CHECK(pwrite(fd, bytes, len, at) == (ssize_t)len);
        memcpy(shadow + at, bytes, len);
        break;
    case 5:
        CHECK(pread(fd, bytes, len, at) == (ssize_t)len);
        SAME(bytes, at, len);
        break;
    case 6: // From the map to the file, by the map.
        if ((other = apart(at, len)) == (size_t)-1) break;
        CHECK(pwrite(fd, map + at, len, other) == (ssize_t)len);
        memcpy(shadow + other, shadow + at, len);
        break;
    case 7:
        if ((other = apart(at, len)) == (size_t)-1) break;
        CHECK(pread(fd, map + other, len, at) == (ssize_t)len);
        memcpy(shadow + other, shadow + at, len);
        break;
    case 8:
        CHECK(lseek(fd, at, SEEK_SET) == offset && write(fd, bytes, len) == (ssize_t)len && lseek(fd, 0, SEEK_CUR) == (off_t)(at + len));
        memcpy(shadow + at, bytes, len);
        break;
    case 9:
        CHECK(lseek(fd, at, SEEK_SET) == offset && read(fd, bytes, len) == (ssize_t)len);
        SAME(bytes, at, len);
        break;
    case 10:
        if (size + len > MOST) break;
        CHECK(write(append_fd, bytes, len) == (ssize_t)len);
        resize(size + len);
        memcpy(shadow + size - len, bytes, len);
        SAME(map + size - len, size - len, len);
        break;
    case 11:
        other = below(8) ? size - below(size < 100000 ? size : 100000) : below(MOST);
        CHECK(ftruncate(fd, other) == 0);
        resize(other);
        break;
    case 12:
        other = size + below(MOST - size);
        CHECK((below(2) ? ftruncate(fd, other) : truncate(path, other)) == 0);
        resize(other);
        break;
    case 13:
        CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len) == 0);
        memset(shadow + at, 0, len);
        break;
    case 14:
        CHECK(fallocate(fd, FALLOC_FL_ZERO_RANGE, at, len) == 0 || errno == EOPNOTSUPP);
        memset(shadow + at, 0, len);
        if (errno == EOPNOTSUPP) CHECK(pwrite(fd, shadow + at, len, at) == (ssize_t)len);
        break;
    case 15:
        other = size + below(MOST - size > 50000 ? 50000 : MOST - size);
        if (other == size) break;
        CHECK(below(2) ? fallocate(fd, 0, size - 1, other - size + 1) == 0 : posix_fallocate(fd, 0, other) == 0);
        resize(other);
        break;
    case 16: // To another file and back, elsewhere.
        if ((other = apart(at, len)) == (size_t)-1) break;
        CHECK(ftruncate(other_fd, 0) == 0 && lseek(other_fd, 0, SEEK_SET) == 0);
        CHECK(sendfile(other_fd, fd, &offset, len) == (ssize_t)len && offset == (off_t)(at + len));
        CHECK(pread(other_fd, bytes, len, 0) == (ssize_t)len);
        SAME(bytes, at, len);
        offset = 0;
        CHECK(lseek(fd, other, SEEK_SET) == (off_t)other && sendfile(fd, other_fd, &offset, len) == (ssize_t)len);
        memcpy(shadow + other, shadow + at, len);
        break;
    case 17:
        if ((other = apart(at, len)) == (size_t)-1) break;
        target = other;
        CHECK(copy_file_range(fd, &offset, fd, &target, len, 0) == (ssize_t)len);
        memcpy(shadow + other, shadow + at, len);
        break;
    case 18: // Through a pipe.
        if ((other = apart(at, len)) == (size_t)-1) break;
        target = other;
        CHECK(pipe(fds) == 0);
        for (size_t done = 0; done < len;) {
            ssize_t out = splice(fd, &offset, fds[1], NULL, len - done, 0);
            CHECK(out > 0);
            for (ssize_t back = 0; back < out;) {
                ssize_t in = splice(fds[0], NULL, fd, &target, out - back, 0);
                CHECK(in > 0);
                back += in;
            }
            done += out;
        }
        close(fds[0]);
        close(fds[1]);
        memcpy(shadow + other, shadow + at, len);
        break;
    case 19:
        CHECK((stream = fopen(path, "r")) && fseek(stream, at, SEEK_SET) == 0);
        CHECK(fread(bytes, 1, len, stream) == len);
        fclose(stream);
        SAME(bytes, at, len);
        break;
    case 20:
        CHECK((stream = fopen(path, "r+")) && fseek(stream, at, SEEK_SET) == 0);
        CHECK(fwrite(bytes, 1, len / 2, stream) == len / 2 && fwrite(bytes + len / 2, 1, len - len / 2, stream) == len - len / 2);
        CHECK((below(2) ? fflush(stream) : 0) == 0 && fclose(stream) == 0);
        memcpy(shadow + at, bytes, len);
        break;
    case 21:
        CHECK(msync(map + at / PAGE * PAGE, len, MS_SYNC) == 0);
        break;
    case 22:
        if (below(4)) break;
        CHECK((below(2) ? fsync(fd) : fdatasync(fd)) == 0);
        break;
    case 23: // Data is no hole.
        map[at] = 1;
        shadow[at] = 1;
        CHECK(lseek(fd, at, SEEK_DATA) == offset && lseek(fd, at, SEEK_HOLE) > offset);
        break;
    case 24:
        if (direct_fd < 0) break;
        at = at / PAGE * PAGE;
        len = (len + PAGE - 1) / PAGE * PAGE;
        if (at + len > size) break;
        new_bytes(len);
        CHECK(pwrite(direct_fd, bytes, len, at) == (ssize_t)len);
        memcpy(shadow + at, bytes, len);
        break;
    case 25:
        if (direct_fd < 0) break;
        at = at / PAGE * PAGE;
        len = (len + PAGE - 1) / PAGE * PAGE;
        if (at + len > size) break;
        CHECK(pread(direct_fd, bytes, len, at) == (ssize_t)len);
        SAME(bytes, at, len);
        break;
    case 26: {
        if (below(10) == 0) { // Emptied by opening.
            int emptied = open(path, O_RDWR | O_TRUNC);
            CHECK(emptied >= 0 && close(emptied) == 0);
            resize(0);
            break;
        }
        struct iovec parts[3] = {{bytes, len / 3}, {bytes + len / 3, len / 3}, {bytes + 2 * (len / 3), len - 2 * (len / 3)}};
        CHECK(pwritev(fd, parts, 3, at) == (ssize_t)len);
        memcpy(shadow + at, bytes, len);
        CHECK(preadv2(fd, parts, 3, at, 0) == (ssize_t)len);
        SAME(bytes, at, len);
        break;
    }
    }
}

static void operations(void) {
    for (step = 0; step < steps; step++) {
        one();
        if (step % 500 == 499) everything();
    }
    everything();
    CHECK(munmap(map, MOST) == 0);
    // Unmapped, all of it is in the file.
    for (size_t at = 0; at < size;) {
        size_t len = size - at < LONGEST ? size - at : LONGEST;
        CHECK(pread(fd, bytes, len, at) == (ssize_t)len);
        SAME(bytes, at, len);
        at += len;
    }
}

// Threads whose bytes lie side by side in the same pages.
enum { CELL = 64, THREADS = 4, CELLS = 96 * PAGE / CELL };

static void *own_cells(void *argument) {
    int self = (int)(intptr_t)argument, own = open(path, O_RDWR);
    uint64_t state = 77 + self;
    unsigned char *expected = calloc(CELLS / THREADS, 1), cell[CELL];
    for (long i = 0; i < steps; i++) {
        size_t index = random_number(&state) % (CELLS / THREADS), at = (index * THREADS + self) * CELL;
        unsigned char value = (unsigned char)random_number(&state), was = expected[index];
        switch (random_number(&state) % 5) {
        case 0:
            memset(map + at, value, CELL);
            expected[index] = value;
            break;
        case 1:
            memset(cell, value, CELL);
            CHECK(pwrite(own, cell, CELL, at) == CELL);
            expected[index] = value;
            break;
        case 2:
            for (int k = 0; k < CELL; k++)
                if (map[at + k] != was) {
                    dprintf(2, "thread %d, step %ld: cell at %zu + %d is %u, not %u\n", self, i, at, k, map[at + k], was);
                    exit(1);
                }
            break;
        case 3:
            CHECK(pread(own, cell, CELL, at) == CELL);
            for (int k = 0; k < CELL; k++)
                if (cell[k] != was) {
                    dprintf(2, "thread %d, step %ld: read at %zu + %d is %u, not %u\n", self, i, at, k, cell[k], was);
                    exit(1);
                }
            break;
        case 4: // From a mapped cell to another.
            for (size_t second = random_number(&state) % (CELLS / THREADS); second != index;) {
                CHECK(pwrite(own, map + at, CELL, (second * THREADS + self) * CELL) == CELL);
                expected[second] = was;
                break;
            }
            break;
        }
    }
    free(expected);
    close(own);
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    CHECK(ftruncate(fd, MOST) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&all[i], NULL, own_cells, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(all[i], NULL) == 0);
}

// Many threads append, each to its own descriptor: no byte is lost, all are mapped.
static void *append_some(void *argument) {
    int own = open(path, O_WRONLY | O_APPEND);
    char line[100];
    memset(line, 'a' + (int)(intptr_t)argument, sizeof line);
    for (int i = 0; i < 300; i++) CHECK(write(own, line, sizeof line) == sizeof line);
    close(own);
    return NULL;
}

static void appends(void) {
    pthread_t all[THREADS];
    size = 1000;
    CHECK(ftruncate(fd, size) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&all[i], NULL, append_some, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(all[i], NULL) == 0);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_size == 1000 + THREADS * 300 * 100);
    int counts[THREADS] = {0};
    for (off_t at = 1000; at < stat.st_size; at += 100) {
        for (int k = 1; k < 100; k++) CHECK(map[at + k] == map[at]);
        CHECK(map[at] >= 'a' && map[at] < 'a' + THREADS);
        counts[map[at] - 'a']++;
    }
    for (int i = 0; i < THREADS; i++) CHECK(counts[i] == 300);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    path = argv[2];
    if (getenv("SEED")) seed = strtoull(getenv("SEED"), NULL, 10) * 2654435769u + 1;
    if (getenv("STEPS")) steps = atol(getenv("STEPS"));
    shadow = calloc(MOST + LONGEST, 1);
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    append_fd = open(path, O_WRONLY | O_APPEND);
    direct_fd = strcmp(argv[1], "buffered") ? open(path, O_RDWR | O_DIRECT) : -1;
    other_fd = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && append_fd >= 0 && other_fd >= 0);
    size = MOST / 2;
    CHECK(ftruncate(fd, size) == 0);
    map = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    if (!strcmp(argv[1], "threads")) threads();
    else if (!strcmp(argv[1], "appends")) appends();
    else operations();
    return 0;
}
