// A malloc-heavy program, for tests/programs/measure: builds a hash table and a tree, then reads and changes them at random.
//
//   heap_bench NODES OPERATIONS THREADS
//
// With HEAP_BENCH_FILE its operator new hands out memory of that file, mapped MAP_SHARED by the kernel: blocks of 16 bytes'
// multiples side by side, free ones by size, no tables, no headers. No allocator lays memory out denser, or touches less.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <map>
#include <new>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

static char *arena_at;
static std::atomic<size_t> arena_used;
static size_t arena_size;
static thread_local void *arena_free[1 << 12];

static bool arena() {
    static const bool made = [] {
        const char *path = getenv("HEAP_BENCH_FILE");
        if (!path) return false;
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        arena_size = 4ul << 30;
        if (fd < 0 || ftruncate(fd, arena_size)) return perror(path), exit(1), false;
        unlink(path);
        void *at = mmap(nullptr, arena_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) return perror(path), exit(1), false;
        madvise(at, arena_size, MADV_RANDOM);
        return arena_at = static_cast<char *>(at), true;
    }();
    return made;
}

void *operator new(size_t size) {
    if (!arena()) {
        if (void *at = malloc(size)) return at;
        throw std::bad_alloc();
    }
    size_t units = (size + 15) / 16;
    if (units < 1 << 12 && arena_free[units]) {
        void *at = arena_free[units];
        arena_free[units] = *static_cast<void **>(at);
        return at;
    }
    size_t at = arena_used.fetch_add(units * 16);
    if (at + units * 16 > arena_size) throw std::bad_alloc();
    return arena_at + at;
}

void operator delete(void *at, size_t size) noexcept {
    size_t units = (size + 15) / 16;
    if (!arena()) return free(at);
    if (!at || units >= 1 << 12) return;
    *static_cast<void **>(at) = arena_free[units];
    arena_free[units] = at;
}

void operator delete(void *at) noexcept {
    if (!arena()) free(at);
}

struct Value {
    uint64_t key, count;
    char text[184];
};

int main(int argc, char **argv) {
    if (argc != 4) return fputs("usage: heap_bench NODES OPERATIONS THREADS\n", stderr), 2;
    const size_t nodes = strtoul(argv[1], nullptr, 10), operations = strtoul(argv[2], nullptr, 10);
    const unsigned count = strtoul(argv[3], nullptr, 10);
    auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
    auto mixed = [](uint64_t x) { return x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du, x ^ x >> 33; };
    std::unordered_map<uint64_t, Value> table;
    std::map<uint64_t, Value> tree;
    table.reserve(nodes);
    double start = now();
    for (uint64_t i = 0; i < nodes; i++) {
        table[mixed(i)] = Value{mixed(i), 0, {}};
        if (i % 8 == 0) tree[mixed(i)] = Value{mixed(i), 0, {}};
    }
    double built = now();
    std::atomic<uint64_t> wrong = 0, changed = 0;
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < count; thread++)
        threads.emplace_back([&, thread] {
            uint64_t state = thread + 1, bad = 0, stores = 0;
            for (size_t i = 0; i < operations / count; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                // Each thread has keys of its own: no two touch one node.
                uint64_t key = mixed((state >> 24) % (nodes / count) * count + thread);
                if (state >> 20 & 1 && state >> 21 & 1 && state >> 22 & 1) {
                    auto found = tree.find(key);
                    bad += found != tree.end() && found->second.key != key;
                    continue;
                }
                Value &value = table.find(key)->second;
                bad += value.key != key;
                if ((state >> 60) < 4) value.count++, stores++;
            }
            wrong += bad, changed += stores;
        });
    for (auto &thread : threads) thread.join();
    double walked = now();
    uint64_t sum = 0;
    for (auto &[key, value] : table) sum += value.count;
    printf("built %.0f nodes/s, walked %.0f operations/s%s\n", nodes / (built - start), operations / (walked - built),
           wrong || sum != changed ? ", WRONG" : "");
    fflush(stdout);
    _exit(wrong || sum != changed);
}
