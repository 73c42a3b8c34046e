/* Counts words in a table that lives in a file, and may be larger than memory.
 *
 *     tally TABLE TEXT...     adds the words of the texts to the table, and prints how many it has
 *
 * TABLE keeps its counts from run to run. A copy of it goes to TABLE.copy, written straight from the map.
 *
 *     cc -o tally tally.c $(pkg-config --cflags --libs fastmap)
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fastmap.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct entry {
    char word[24];
    uint64_t count;
};

enum { ENTRIES = 1 << 18, BATCH = 64 };
static const size_t TABLE_BYTES = sizeof(struct entry) * ENTRIES;

static void fail(const char *what) {
    /* What failed in the library has more to say than its number. */
    fprintf(stderr, "tally: %s: %s\n", what, *fm_last_error() ? fm_last_error() : strerror(errno));
    exit(1);
}

static size_t home_of(const char *word) {
    uint64_t hash = 14695981039346656037u;
    for (; *word; word++)
        hash = (hash ^ (unsigned char)*word) * 1099511628211u;
    return (size_t)(hash >> 20) % ENTRIES;
}

static void add(struct entry *table, const char *word) {
    size_t at = home_of(word);
    while (table[at].count > 0 && strcmp(table[at].word, word) != 0)
        at = (at + 1) % ENTRIES;
    if (table[at].count == 0)
        memcpy(table[at].word, word, strlen(word) + 1);
    table[at].count++;
}

/* Where a batch of words will be looked up is known before it is: all of it is read at the same time. */
static void add_all(struct entry *table, char words[][24], size_t count) {
    struct fm_range ranges[BATCH] = {{NULL, 0}};
    for (size_t i = 0; i < count; i++) {
        ranges[i].addr = &table[home_of(words[i])];
        ranges[i].length = sizeof(struct entry);
    }
    if (fm_prefetch(ranges, count) < 0)
        fail("fm_prefetch");
    for (size_t i = 0; i < count; i++)
        add(table, words[i]);
}

static uint64_t count_text(struct entry *table, const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0)
        fail(path);
    size_t length = (size_t)facts.st_size;
    if (length == 0) {
        close(fd);
        return 0;
    }
    const char *text = fm_mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    if (text == MAP_FAILED)
        fail(path);
    close(fd);
    char words[BATCH][24];
    size_t waiting = 0, letters = 0;
    uint64_t total = 0;
    for (size_t i = 0; i <= length; i++) {
        if (i < length && isalnum((unsigned char)text[i])) {
            if (letters < sizeof words[0] - 1)
                words[waiting][letters++] = (char)tolower((unsigned char)text[i]);
        } else if (letters > 0) {
            words[waiting++][letters] = '\0';
            letters = 0;
            total++;
            if (waiting == BATCH) {
                add_all(table, words, waiting);
                waiting = 0;
            }
        }
    }
    add_all(table, words, waiting);
    if (fm_munmap((void *)text, length) != 0)
        fail("fm_munmap");
    return total;
}

/* A system call is handed memory that is pinned. */
static void copy_to(const char *path, const char *from, size_t length) {
    const size_t part = 64 << 10;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        fail(path);
    for (size_t at = 0; at < length; at += part) {
        size_t bytes = length - at < part ? length - at : part;
        if (fm_pin(from + at, bytes, 0) != 0)
            fail("fm_pin");
        if (write(fd, from + at, bytes) != (ssize_t)bytes)
            fail(path);
        fm_unpin(from + at, bytes, 0);
    }
    if (close(fd) != 0)
        fail(path);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: tally TABLE TEXT...\n");
        return 2;
    }
    int fd = open(argv[1], O_RDWR | O_CREAT, 0666);
    if (fd < 0 || ftruncate(fd, (off_t)TABLE_BYTES) != 0)
        fail(argv[1]);
    /* An eighth of the table, on purpose. */
    if (fm_cache_resize(NULL, TABLE_BYTES / 8) != 0)
        fail("fm_cache_resize");
    struct entry *table = fm_mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (table == MAP_FAILED)
        fail(argv[1]);
    close(fd);
    fm_madvise(table, TABLE_BYTES, MADV_RANDOM);
    uint64_t total = 0, words = 0;
    for (int i = 2; i < argc; i++)
        total += count_text(table, argv[i]);
    if (fm_msync(table, TABLE_BYTES, MS_SYNC) != 0)
        fail("fm_msync");
    const struct entry *most = table;
    for (const struct entry *entry = table; entry < table + ENTRIES; entry++) {
        words += entry->count > 0;
        if (entry->count > most->count)
            most = entry;
    }
    printf("%llu words counted, %llu in the table, most often \"%s\": %llu\n", (unsigned long long)total,
           (unsigned long long)words, most->word, (unsigned long long)most->count);
    char copy[4096];
    snprintf(copy, sizeof copy, "%s.copy", argv[1]);
    copy_to(copy, (const char *)table, TABLE_BYTES);
    struct fm_stats stats;
    if (fm_stats(NULL, &stats, sizeof stats) != 0)
        fail("fm_stats");
    fprintf(stderr, "%s: %llu of %llu KiB in memory, %llu misses, %llu pages prefetched\n",
            fm_is_cached(table, TABLE_BYTES) ? "cached" : "a kernel mapping",
            (unsigned long long)stats.resident_pages * 4, (unsigned long long)stats.capacity / 1024,
            (unsigned long long)stats.misses, (unsigned long long)stats.prefetched_pages);
    return fm_munmap(table, TABLE_BYTES) == 0 ? 0 : 1;
}
