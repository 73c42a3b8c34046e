// LMDB. It gets random values of 1000 bytes, 64 in a transaction. With WRITER, another process writes new versions of the values meanwhile.
#include <lmdb.h>
#include <signal.h>
#include <sys/wait.h>

#include "program.h"

enum { WORDS = 125, GETS = 64, PUTS = 50000, TO_A_PAGE = 4, WRITES = 8, PAUSE_US = 5000 };

static MDB_env *env;
static MDB_dbi table;
static uint64_t records;

static void check(int error, const char *what) {
    if (error) {
        fprintf(stderr, "lmdb: %s: %s\n", what, mdb_strerror(error));
        exit(1);
    }
}

static void open_in(const char *data, unsigned flags) {
    check(mdb_env_create(&env), "create");
    check(mdb_env_set_mapsize(env, (size_t)1 << 40), "set the size");
    check(mdb_env_open(env, data, flags, 0644), data);
}

// A value begins with its version. Each other word is a word of the key plus the version.
static void put(MDB_txn *txn, uint64_t key, uint64_t version, unsigned flags) {
    uint64_t words[WORDS] = {version};
    for (int at = 1; at < WORDS; at++) words[at] = mix(key * WORDS + (uint64_t)at) + version;
    MDB_val name = {sizeof key, &key}, value = {sizeof words, words};
    check(mdb_put(txn, table, &name, &value, flags), "put");
}

static void make(const char *data, uint64_t bytes) {
    records = bytes / 4096 * TO_A_PAGE;
    open_in(data, MDB_NOSYNC);
    for (uint64_t key = 0; key < records;) {
        MDB_txn *txn;
        check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        check(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &table), "open the table");
        for (uint64_t end = key + PUTS; key < records && key < end; key++) put(txn, key, 0, MDB_APPEND);
        check(mdb_txn_commit(txn), "commit");
    }
    check(mdb_env_sync(env, 1), "sync");
    mdb_env_close(env);
}

#ifdef WRITER
static pid_t writer;

static void stop(void) {
    kill(writer, SIGTERM);
    waitpid(writer, NULL, 0);
}

// `PROGRAM write DATA` writes until it is killed.
__attribute__((constructor)) static void write_forever(int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "write")) return;
    MDB_stat facts;
    open_in(argv[2], MDB_NOSYNC);
    for (uint64_t n = 1;; n++) {
        MDB_txn *txn;
        check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        check(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &table), "open the table");
        check(mdb_stat(txn, table, &facts), "stat");
        for (uint64_t turn = 0; turn < WRITES; turn++) put(txn, mix(~(n * WRITES + turn)) % facts.ms_entries, n, 0);
        check(mdb_txn_commit(txn), "commit");
        usleep(PAUSE_US);
    }
}
#endif

static void begin(const char *data) {
#ifdef WRITER
    if (!(writer = fork())) {
        // Standard output is for the bench, which listens to the reader.
        dup2(2, 1);
        execl("/proc/self/exe", "writer", "write", data, NULL);
        fail("writer");
    }
    atexit(stop);
#endif
    open_in(data, MDB_RDONLY);
    MDB_stat facts;
    MDB_txn *txn;
    check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    check(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &table), "open the table");
    check(mdb_stat(txn, table, &facts), "stat");
    check(mdb_txn_commit(txn), "keep the table open");
    records = facts.ms_entries;
}

static uint64_t batch(uint64_t n, uint64_t *ops) {
    MDB_txn *txn;
    uint64_t sum = 0;
    check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    for (uint64_t turn = 0; turn < GETS; turn++) {
        uint64_t key = mix(n * GETS + turn) % records;
        MDB_val name = {sizeof key, &key}, value;
        check(mdb_get(txn, table, &name, &value), "get");
        uint64_t words[WORDS];
        if (value.mv_size != sizeof words) check(MDB_CORRUPTED, "get");
        memcpy(words, value.mv_data, sizeof words);
        for (int at = WORDS; at-- > 0;) words[at] -= words[0];
        sum = sum * 31 + sum_of(words, sizeof words);
    }
    mdb_txn_abort(txn);
    *ops += GETS;
    return sum;
}
