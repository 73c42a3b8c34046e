/* Copies rows of a table that lies in an object store to standard output: those asked for are fetched, all at a time.
 *
 *     rows URL BYTES NUMBER...     rows of so many bytes, by their numbers: rows s3://bucket/table 512 7 3 100000
 *
 * What was fetched is kept in ~/.cache/fastmap, and is there the next time.
 *
 *     cc -o rows rows.c $(pkg-config --cflags --libs fastmap)
 */
#include <errno.h>
#include <fastmap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what) {
    if (*fm_last_error())
        fprintf(stderr, "rows: %s\n", fm_last_error());
    else
        fprintf(stderr, "rows: %s: %s\n", what, strerror(errno));
    exit(1);
}

int main(int argc, char **argv) {
    size_t bytes = argc < 4 ? 0 : strtoul(argv[2], NULL, 10), count = (size_t)argc - 3, length = 0;
    if (bytes == 0) {
        fprintf(stderr, "usage: rows URL BYTES NUMBER...\n");
        return 2;
    }
    const char *table = fm_open_url(argv[1], 0, &length, NULL);
    if (table == MAP_FAILED)
        fail("fm_open_url");
    struct fm_range *ranges = malloc(count * sizeof *ranges);
    char *rows = malloc(count * bytes);
    if (!ranges || !rows)
        fail("malloc");
    for (size_t i = 0; i < count; i++) {
        size_t number = strtoul(argv[3 + i], NULL, 10);
        if (number >= length / bytes) {
            fprintf(stderr, "rows: %s: the table has %zu rows\n", argv[3 + i], length / bytes);
            return 1;
        }
        ranges[i].addr = table + number * bytes;
        ranges[i].length = bytes;
    }
    if (fm_gather(ranges, count, rows, count * bytes) != 0)
        fail("fm_gather");
    fwrite(rows, bytes, count, stdout);
    struct fm_object_stats stats;
    if (fm_object_stats(table, &stats, sizeof stats) != 0)
        fail("fm_object_stats");
    fprintf(stderr, "%llu bytes fetched by %llu requests, %llu from the local copy\n", (unsigned long long)stats.fetched,
            (unsigned long long)stats.requests, (unsigned long long)stats.hit);
    free(ranges), free(rows);
    return fm_munmap((void *)table, length) == 0 ? 0 : 1;
}
