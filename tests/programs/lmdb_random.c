// Random reads from an LMDB database by several threads, for tests/programs/measure.
//
//   lmdb_random make DIR RECORDS       1000-byte values, each full of a number made from its key
//   lmdb_random read DIR RECORDS THREADS SECONDS
//       prints reads a second, after checking every value read
#include <inttypes.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 125 };

static MDB_env *env;
static MDB_dbi table;
static uint64_t records;
static double seconds;

static void check(int error, const char *what) {
    if (error) {
        fprintf(stderr, "lmdb_random: %s: %s\n", what, mdb_strerror(error));
        exit(1);
    }
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fill(uint64_t key, uint64_t words[WORDS]) {
    for (int at = 0; at < WORDS; at++) words[at] = mix(key * WORDS + (uint64_t)at);
}

static void make(void) {
    uint64_t words[WORDS];
    for (uint64_t key = 0; key < records;) {
        MDB_txn *txn;
        check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        check(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &table), "open the table");
        for (uint64_t end = key + 50000; key < records && key < end; key++) {
            fill(key, words);
            MDB_val name = {sizeof key, &key}, value = {sizeof words, words};
            check(mdb_put(txn, table, &name, &value, MDB_APPEND), "put");
        }
        check(mdb_txn_commit(txn), "commit");
    }
}

static void *reader(void *seed) {
    uint64_t state = (uintptr_t)seed, count = 0, words[WORDS];
    double end = now() + seconds;
    while (now() < end) {
        MDB_txn *txn;
        check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
        for (int turn = 0; turn < 256; turn++, count++) {
            uint64_t key = mix(state++) % records;
            MDB_val name = {sizeof key, &key}, value;
            check(mdb_get(txn, table, &name, &value), "get");
            fill(key, words);
            if (value.mv_size != sizeof words || memcmp(value.mv_data, words, sizeof words) != 0) {
                fprintf(stderr, "lmdb_random: key %" PRIu64 " has a wrong value\n", key);
                exit(1);
            }
        }
        mdb_txn_abort(txn);
    }
    return (void *)(uintptr_t)count;
}

int main(int argc, char **argv) {
    int making = argc == 4 && strcmp(argv[1], "make") == 0;
    if (!making && !(argc == 6 && strcmp(argv[1], "read") == 0)) {
        fprintf(stderr, "usage: lmdb_random make DIR RECORDS | read DIR RECORDS THREADS SECONDS\n");
        return 2;
    }
    records = strtoull(argv[3], NULL, 10);
    check(mdb_env_create(&env), "create");
    check(mdb_env_set_mapsize(env, (size_t)16 << 30), "set the size");
    check(mdb_env_open(env, argv[2], making ? MDB_NOSYNC | MDB_WRITEMAP : MDB_RDONLY | MDB_NORDAHEAD, 0644), argv[2]);
    if (making) {
        make();
        check(mdb_env_sync(env, 1), "sync");
    } else {
        int threads = atoi(argv[4]);
        seconds = atof(argv[5]);
        MDB_txn *txn;
        check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
        check(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &table), "open the table");
        check(mdb_txn_commit(txn), "commit");
        pthread_t ids[64];
        uint64_t sum = 0;
        double start = now();
        for (int at = 0; at < threads && at < 64; at++)
            pthread_create(&ids[at], NULL, reader, (void *)(uintptr_t)((uint64_t)at << 40 | (uint64_t)getpid() << 20));
        for (int at = 0; at < threads && at < 64; at++) {
            void *count;
            pthread_join(ids[at], &count);
            sum += (uintptr_t)count;
        }
        printf("%.0f\n", (double)sum / (now() - start));
    }
    mdb_env_close(env);
    return 0;
}
