// memcached with its items in a file that it maps (--memory-file). Random values of 1000 bytes are read over a socket.
//
// Each run fills it first. memcached can also keep its items from run to run, if it is ended by SIGUSR1. But then it goes through all
// items in the order of their last use, which takes a quarter of an hour with memory for half of them.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "program.h"

// The first of a value's WORDS words is its key. ROOM is the memory for each item, bytes.
enum { WORDS = 125, GETS = 64, AT_ONCE = 16, ROOM = 1400, PUTS = 256 };

static pid_t server;
static FILE *to, *from;
static uint64_t records;

static void stop(void) {
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}

// Starts memcached in the directory of the data, and connects to it.
static void start(const char *data, uint64_t bytes) {
    if (chdir(data)) fail(data);
    char mib[24];
    snprintf(mib, sizeof mib, "%" PRIu64, bytes < 64 << 20 ? 64 : bytes >> 20);
    server = fork();
    if (server < 0) fail("fork");
    if (server == 0) {
        // Standard output is for the bench, which listens to this program.
        dup2(2, 1);
        execlp("memcached", "memcached", "-s", "socket", "-e", "items", "-m", mib, "-t", "2", geteuid() ? NULL : "-u", "root", NULL);
        fail("memcached");
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    while (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        if (waitpid(server, NULL, WNOHANG)) fail("memcached has ended");
        usleep(1000);
    }
    // The directory may only hold files: the bench reads all of them.
    unlink("socket");
    if (!(to = fdopen(fd, "w")) || !(from = fdopen(dup(fd), "r"))) fail("socket");
    atexit(stop);
}

static const char *line(void) {
    static char text[256];
    if (fflush(to) || !fgets(text, sizeof text, from)) fail("memcached says nothing");
    return text;
}

static void must(int right, const char *said) {
    if (right) return;
    fprintf(stderr, "memcached: %s", said);
    exit(1);
}

static void make(const char *data, uint64_t bytes) {
    int fd = open(in(data, "items"), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) fail(path);
    close(fd);
    // Shows whether memcached is installed.
    start(data, bytes);
}

static void begin(const char *data) {
    struct stat facts;
    uint64_t words[WORDS];
    if (stat(in(data, "items"), &facts)) fail(path);
    start(data, (uint64_t)facts.st_size);
    records = (uint64_t)facts.st_size / ROOM;
    for (uint64_t key = 0; key < records;) {
        uint64_t first = key;
        for (; key < records && key < first + PUTS; key++) {
            for (int at = 0; at < WORDS; at++) words[at] = at ? mix(key * WORDS + (uint64_t)at) : key;
            fprintf(to, "set %" PRIx64 " 0 0 %zu\r\n", key, sizeof words);
            fwrite(words, sizeof words, 1, to);
            fputs("\r\n", to);
        }
        for (; first < key; first++) {
            const char *said = line();
            must(!strcmp(said, "STORED\r\n"), said);
        }
    }
}

static uint64_t get(const uint64_t *keys) {
    uint64_t sum = 0, words[WORDS + 1];
    fputs("get", to);
    for (int at = 0; at < AT_ONCE; at++) fprintf(to, " %" PRIx64, keys[at]);
    fputs("\r\n", to);
    for (int at = 0; at < AT_ONCE; at++) {
        uint64_t key;
        const char *said = line();
        must(sscanf(said, "VALUE %" SCNx64 " 0 1000", &key) == 1 && key == keys[at], said);
        if (fread(words, WORDS * 8 + 2, 1, from) != 1) fail("a value");
        sum = sum * 31 + sum_of(words, WORDS * 8);
    }
    const char *said = line();
    must(!strcmp(said, "END\r\n"), said);
    return sum;
}

static uint64_t batch(uint64_t n, uint64_t *ops) {
    uint64_t sum = 0, keys[AT_ONCE];
    for (uint64_t turn = 0; turn < GETS; turn += AT_ONCE) {
        for (uint64_t at = 0; at < AT_ONCE; at++) keys[at] = mix(n * GETS + turn + at) % records;
        sum = sum * 31 + get(keys);
    }
    *ops += GETS;
    return sum;
}
