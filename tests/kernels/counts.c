/* Maps a file and touches its pages as a list says, and counts what that costs.
 *
 *   counts FILE TOUCHES [OPTION…]
 *
 * TOUCHES is a file of numbers of 32 bits, little-endian: the pages of FILE in the order in which they are touched. The highest
 * bit says that the page is stored to, not loaded from; if there is a store, FILE is mapped to be written. The list is read in
 * pieces, past the page cache where its file system can, and what that reads is not counted.
 *
 *   --advice NAME   madvise(2) of the whole mapping first: normal (none), random, sequential, willneed, hugepage
 *   --threads N     touch number K of a piece is made by thread K mod N, each at its own pace; 1
 *   --rounds N      goes through the list as often; 1
 *   --from K        counts from touch K on, of all rounds
 *   --drop          takes FILE out of the page cache first
 *
 * Prints one line, `touches T read_pages R major M minor m device_pages D`: touches counted; pages read by this process
 * (/proc/self/io); its faults that waited for a device, and those that did not; pages that the device under FILE read meanwhile
 * for everybody, so also those that something beside the program read for it (-1 where FILE's device has no such figure).
 * There are no times in it: it is for emulated machines, too.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 1 << 16, MOST_THREADS = 64 };
static const uint32_t STORE = UINT32_C(1) << 31;

static unsigned char *map;
/* The piece of the list that is worked at, and how many threads do. */
static uint32_t *piece;
static long length, threads = 1;

struct counts {
    long read_pages, major, minor, device_pages;
};

static long number(const char *text, long least, long most) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != 0 || end == text || value < least || value > most)
        errx(2, "%s: not a number from %ld to %ld", text, least, most);
    return value;
}

static int advice_of(const char *name) {
    const struct { const char *name; int advice; } known[] = {
        {"normal", MADV_NORMAL}, {"random", MADV_RANDOM}, {"sequential", MADV_SEQUENTIAL},
        {"willneed", MADV_WILLNEED}, {"hugepage", MADV_HUGEPAGE}};
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (strcmp(name, known[at].name) == 0)
            return known[at].advice;
    errx(2, "%s: no advice known here", name);
}

/* Bytes that were read for this process, threads that have ended included. */
static long own_bytes(void) {
    static int file = -1;
    char text[512];
    if (file < 0 && (file = open("/proc/self/io", O_RDONLY | O_CLOEXEC)) < 0)
        err(1, "/proc/self/io");
    ssize_t got = pread(file, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    const char *line = strstr(text, "\nread_bytes: ");
    if (line == NULL)
        errx(1, "/proc/self/io says nothing of read_bytes");
    return atol(line + strlen("\nread_bytes: "));
}

/* Sectors of 512 bytes that the device has read; -1 if none is known. */
static long device_sectors(dev_t device) {
    static int file = -1;
    char text[512];
    if (file < 0) {
        snprintf(text, sizeof text, "/sys/dev/block/%u:%u/stat", major(device), minor(device));
        file = open(text, O_RDONLY | O_CLOEXEC);
    }
    ssize_t got = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
    long sectors;
    text[got > 0 ? got : 0] = 0;
    return sscanf(text, "%*d %*d %ld", &sectors) == 1 ? sectors : -1;
}

static struct counts now(dev_t device) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    long sectors = device_sectors(device);
    return (struct counts){own_bytes() / PAGE, usage.ru_majflt, usage.ru_minflt, sectors < 0 ? -1 : sectors / (PAGE / 512)};
}

/* The next piece of the list; 0 at its end. */
static long next_piece(int list, const char *name) {
    ssize_t got = read(list, piece, PIECE * sizeof *piece);
    if (got < 0 || got % sizeof *piece != 0)
        err(1, "%s: its length is no multiple of four, or it cannot be read", name);
    return length = got / sizeof *piece;
}

struct share {
    pthread_t thread;
    long first, begin, end;
};

static void *touch(void *argument) {
    const struct share *share = argument;
    /* Those of this thread: its first one from `begin` on. */
    for (long at = share->begin + (share->first - share->begin % threads + threads) % threads; at < share->end; at += threads) {
        volatile unsigned char *page = map + (size_t)(piece[at] & ~STORE) * PAGE;
        if (piece[at] & STORE)
            *page = (unsigned char)at;
        else
            (void)*page;
    }
    return NULL;
}

/* Touches what the piece has from `begin` to `end`. */
static void touch_all(long begin, long end) {
    static struct share shares[MOST_THREADS];
    for (long thread = 1; thread < threads; thread++) {
        shares[thread] = (struct share){.first = thread, .begin = begin, .end = end};
        if (pthread_create(&shares[thread].thread, NULL, touch, &shares[thread]) != 0)
            errx(1, "a thread cannot be started");
    }
    shares[0] = (struct share){.first = 0, .begin = begin, .end = end};
    touch(&shares[0]);
    for (long thread = 1; thread < threads; thread++)
        pthread_join(shares[thread].thread, NULL);
}

int main(int argc, char **argv) {
    int advice = MADV_NORMAL, drop = 0;
    long rounds = 1, from = 0;
    if (argc < 3)
        errx(2, "usage: counts FILE TOUCHES [--advice NAME] [--threads N] [--rounds N] [--from K] [--drop]");
    for (int at = 3; at < argc; at++) {
        const char *option = argv[at], *value = at + 1 < argc ? argv[at + 1] : "";
        if (strcmp(option, "--drop") == 0) {
            drop = 1;
            continue;
        }
        if (strcmp(option, "--advice") == 0)
            advice = advice_of(value);
        else if (strcmp(option, "--threads") == 0)
            threads = number(value, 1, MOST_THREADS);
        else if (strcmp(option, "--rounds") == 0)
            rounds = number(value, 1, 1 << 30);
        else if (strcmp(option, "--from") == 0)
            from = number(value, 0, INT64_MAX);
        else
            errx(2, "%s: no such option", option);
        at++;
    }
    const char *name = argv[1], *touches = argv[2];
    int list = open(touches, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (list < 0)
        list = open(touches, O_RDONLY | O_CLOEXEC);
    if (list < 0 || posix_memalign((void **)&piece, PAGE, PIECE * sizeof *piece) != 0)
        err(1, "%s", touches);
    int file = open(name, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0)
        err(1, "%s", name);

    /* The list is looked through first, so that a wrong one is no SIGBUS. */
    int stores = 0;
    while (next_piece(list, touches) > 0)
        for (long at = 0; at < length; at++) {
            stores |= (piece[at] & STORE) != 0;
            if ((piece[at] & ~STORE) >= (uint32_t)(status.st_size / PAGE))
                errx(1, "%s: page %u is not in %s", touches, piece[at] & ~STORE, name);
        }
    if (drop && (fsync(file) != 0 || (errno = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)) != 0))
        err(1, "%s", name);
    map = mmap(NULL, status.st_size, PROT_READ | (stores ? PROT_WRITE : 0), MAP_SHARED, file, 0);
    if (map == MAP_FAILED || (advice != MADV_NORMAL && madvise(map, status.st_size, advice) != 0))
        err(1, "%s: mmap or madvise", name);

    struct counts sum = {0, 0, 0, 0};
    long done = 0, counted = 0;
    for (long round = 0; round < rounds; round++) {
        if (lseek(list, 0, SEEK_SET) != 0)
            err(1, "%s", touches);
        while (next_piece(list, touches) > 0) {
            long uncounted = from <= done ? 0 : from - done < length ? from - done : length;
            touch_all(0, uncounted);
            struct counts before = now(status.st_dev);
            touch_all(uncounted, length);
            struct counts after = now(status.st_dev);
            sum.read_pages += after.read_pages - before.read_pages;
            sum.major += after.major - before.major;
            sum.minor += after.minor - before.minor;
            sum.device_pages = before.device_pages < 0 ? -1 : sum.device_pages + after.device_pages - before.device_pages;
            counted += length - uncounted;
            done += length;
        }
    }
    printf("touches %ld read_pages %ld major %ld minor %ld device_pages %ld\n", counted, sum.read_pages, sum.major, sum.minor, sum.device_pages);
    return 0;
}
