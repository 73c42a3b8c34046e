// Load on a memcached, for tests/programs/measure: records of 1 KiB, half of the operations read one, half update one (YCSB's
// workload A), by several threads, each with a connection of its own and one request under way.
//
//   memcached_load SOCKET RECORDS fill
//       stores every record once; prints how many a second
//   memcached_load SOCKET RECORDS run THREADS SECONDS zipf|random
//       after that, once: operates for half as long, then for SECONDS; prints operations a second, and the latencies of reads and
//       of updates
//
// Every read is checked, byte by byte: each thread has records of its own, and what was stored last is known.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 128, BYTES = WORDS * 8, MOST = 64, FILLERS = 4, BUCKETS = 64 * 64 };

static const char *path;
static uint64_t records, threads;
static int skewed;
static double seconds;
static double zeta;        // of the zipf distribution over one thread's records
static uint32_t *versions; // stores of each record so far
static pthread_barrier_t barrier;

struct client {
    uint64_t number, own, state;
    int socket;
    size_t have; // bytes in `answer`
    char request[BYTES + 128], answer[BYTES + 256];
    uint32_t reads[BUCKETS], updates[BUCKETS]; // histograms of nanoseconds
};

static void fail(const char *what, uint64_t key) {
    fprintf(stderr, "memcached_load: record %" PRIu64 ": %s\n", key, what);
    exit(1);
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t draw(struct client *client) { return mix(client->state++); }

static double fraction(struct client *client) { return (double)(draw(client) >> 11) * 0x1p-53; }

// A record of this thread's: uniform, or zipf with theta 0.99 (Gray et al., as in YCSB), the hot ones scattered.
static uint64_t choose(struct client *client) {
    const double theta = 0.99;
    uint64_t rank;
    if (!skewed) {
        rank = draw(client) % client->own;
    } else {
        double n = (double)client->own, u = fraction(client), z = u * zeta, eta;
        eta = (1 - pow(2 / n, 1 - theta)) / (1 - (1 + pow(0.5, theta)) / zeta);
        rank = z < 1 ? 0 : z < 1 + pow(0.5, theta) ? 1 : (uint64_t)(n * pow(eta * u - eta + 1, 1 / (1 - theta)));
        rank = mix(rank) % client->own;
    }
    return rank * threads + client->number;
}

static void fill(uint64_t key, uint32_t version, char *value) {
    uint64_t words[WORDS] = {key, version}, seed = mix(key << 24 ^ version);
    for (int at = 2; at < WORDS; at++) words[at] = mix(seed + (uint64_t)at);
    memcpy(value, words, BYTES);
}

static void request(struct client *client, size_t length, uint64_t key) {
    for (size_t sent = 0; sent < length;) {
        ssize_t count = send(client->socket, client->request + sent, length - sent, 0);
        if (count < 0 && errno != EINTR) fail(strerror(errno), key);
        if (count > 0) sent += (size_t)count;
    }
}

// Receives until the answer ends like `end`.
static void answer(struct client *client, const char *end, uint64_t key) {
    size_t length = strlen(end);
    for (client->have = 0;;) {
        ssize_t count = recv(client->socket, client->answer + client->have, sizeof client->answer - 1 - client->have, 0);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) fail(count ? strerror(errno) : "the server closed the connection", key);
        client->have += (size_t)count;
        client->answer[client->have] = 0;
        if (client->have >= length && memcmp(client->answer + client->have - length, end, length) == 0) return;
        // An error is one line, and nothing longer than a value comes.
        if (strncmp(client->answer, "VALUE ", 6) != 0 && client->answer[client->have - 1] == '\n') return;
        if (client->have == sizeof client->answer - 1) return;
    }
}

static void update(struct client *client, uint64_t key) {
    int head = sprintf(client->request, "set user%019" PRIu64 " 0 0 %d\r\n", key, BYTES);
    fill(key, ++versions[key], client->request + head);
    memcpy(client->request + head + BYTES, "\r\n", 2);
    request(client, (size_t)head + BYTES + 2, key);
    answer(client, "STORED\r\n", key);
    if (strcmp(client->answer, "STORED\r\n") != 0) fail(client->answer, key);
}

static void look(struct client *client, uint64_t key) {
    char expected[BYTES + 128];
    request(client, (size_t)sprintf(client->request, "get user%019" PRIu64 "\r\n", key), key);
    answer(client, "\r\nEND\r\n", key);
    int head = sprintf(expected, "VALUE user%019" PRIu64 " 0 %d\r\n", key, BYTES);
    fill(key, versions[key], expected + head);
    memcpy(expected + head + BYTES, "\r\nEND\r\n", 7);
    if (client->have != (size_t)head + BYTES + 7 || memcmp(client->answer, expected, client->have) != 0)
        fail(client->have < 100 ? client->answer : "has a wrong value", key);
}

// 64 buckets to each power of two.
static void record(uint32_t *histogram, uint64_t ns) {
    int power = 63 - __builtin_clzll(ns | 64);
    histogram[(size_t)(power - 6) * 64 + ((ns >> (power - 6)) & 63)]++;
}

static double quantile(const uint32_t *histogram, double share) {
    uint64_t total = 0, seen = 0;
    for (int at = 0; at < BUCKETS; at++) total += histogram[at];
    for (int at = 0; at < BUCKETS; at++)
        if ((double)(seen += histogram[at]) >= share * (double)total && seen > 0)
            return (double)((uint64_t)(64 + at % 64) << (at / 64)) / 1e3;
    return 0;
}

static void meet(struct client *client) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    client->socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(client->socket, (struct sockaddr *)&address, sizeof address) != 0) fail(strerror(errno), 0);
}

static void *store_all(void *argument) {
    struct client *client = argument;
    meet(client);
    for (uint64_t key = client->number; key < records; key += FILLERS) update(client, key);
    close(client->socket);
    return NULL;
}

// Operates until `end`.
static void operate(struct client *client, uint64_t end) {
    for (uint64_t before = now(); before < end;) {
        uint64_t key = choose(client);
        int reading = draw(client) >> 63;
        reading ? look(client, key) : update(client, key);
        uint64_t after = now();
        record(reading ? client->reads : client->updates, after - before);
        before = after;
    }
}

static void *work(void *argument) {
    struct client *client = argument;
    meet(client);
    operate(client, now() + (uint64_t)(seconds / 2 * 1e9));
    memset(client->reads, 0, sizeof client->reads);
    memset(client->updates, 0, sizeof client->updates);
    pthread_barrier_wait(&barrier);
    operate(client, now() + (uint64_t)(seconds * 1e9));
    return NULL;
}

// Runs one thread a client.
static void run(struct client *clients, void *(*what)(void *)) {
    pthread_t ids[MOST];
    for (uint64_t at = 0; at < threads; at++) {
        clients[at].number = at;
        clients[at].state = 0x5eed + (at << 40);
        clients[at].own = (records - at + threads - 1) / threads;
        pthread_create(&ids[at], NULL, what, &clients[at]);
    }
    for (uint64_t at = 0; at < threads; at++) pthread_join(ids[at], NULL);
}

// Adds up the clients' histograms at an offset and prints some quantiles; returns how many operations are in them.
static uint64_t print_latencies(struct client *clients, const char *what, size_t of) {
    static uint32_t sum[BUCKETS];
    uint64_t count = 0;
    memset(sum, 0, sizeof sum);
    for (uint64_t at = 0; at < threads; at++) {
        const uint32_t *one = (const uint32_t *)((const char *)&clients[at] + of);
        for (int bucket = 0; bucket < BUCKETS; bucket++) sum[bucket] += one[bucket], count += one[bucket];
    }
    printf("%s %.0f %.0f %.0f", what, quantile(sum, 0.5), quantile(sum, 0.99), quantile(sum, 0.999));
    return count;
}

int main(int argc, char **argv) {
    int filling = argc == 4 && strcmp(argv[3], "fill") == 0;
    if (!filling && !(argc == 7 && strcmp(argv[3], "run") == 0)) {
        fprintf(stderr, "usage: memcached_load SOCKET RECORDS fill | SOCKET RECORDS run THREADS SECONDS zipf|random\n");
        return 2;
    }
    path = argv[1], records = strtoull(argv[2], NULL, 10), threads = filling ? FILLERS : strtoull(argv[4], NULL, 10);
    if (threads < 1 || threads > MOST || records < threads * 2) {
        fprintf(stderr, "memcached_load: give 1 to %d threads, and two records for each\n", MOST);
        return 2;
    }
    versions = calloc(records, sizeof *versions);
    struct client *clients = calloc(MOST, sizeof *clients);
    if (filling) {
        uint64_t start = now();
        run(clients, store_all);
        printf("%.0f\n", (double)records / ((double)(now() - start) / 1e9));
        return 0;
    }
    seconds = atof(argv[5]), skewed = strcmp(argv[6], "zipf") == 0;
    for (uint64_t key = 0; key < records; key++) versions[key] = 1;
    for (uint64_t rank = 1; rank <= records / threads; rank++) zeta += pow((double)rank, -0.99);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    run(clients, work);
    printf("latency in us, p50 p99 p99.9:");
    uint64_t count = print_latencies(clients, " reads", offsetof(struct client, reads));
    count += print_latencies(clients, ", updates", offsetof(struct client, updates));
    printf("\n%.0f\n", (double)count / seconds);
    return 0;
}
