// Random reads of pages through UMap (LLNL), as `fastmap bench peers --works random-read` does them: scripts/peers builds it
// against the UMap that the user has built, and runs it in a memory cgroup.
//
//   umap_driver FILE PAGES THREADS SECONDS WARMUP_OPS
//
// FILE is one that `fastmap bench` has stamped. Every read checks three words of its page. Prints one line of JSON.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

// UMap's two calls, which have C linkage and have been the same in all its versions. Its header would bring in another that some
// versions install elsewhere than they look for it.
extern "C" {
void *umap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int uunmap(void *addr, size_t length);
}

using Clock = std::chrono::steady_clock;

static const size_t page_bytes = 4096;
static const size_t words[] = {0, 256, 511};

// splitmix64's finaliser.
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// The word of a stamped page that nobody has written: see stamp.rs.
static uint64_t stamped(uint64_t page, size_t word) {
    return mix((word + 1) * 0xd1b54a32d192ed03u) ^ mix(page * 0x9e3779b97f4a7c15u ^ 0x666173746d617021u);
}

static void look_at(const char *base, uint64_t page) {
    for (size_t word : words) {
        uint64_t found = *reinterpret_cast<const volatile uint64_t *>(base + page * page_bytes + word * 8);
        if (found != stamped(page, word)) {
            fprintf(stderr, "umap_driver: page %" PRIu64 ": word %zu holds %#" PRIx64 " where %#" PRIx64 " belongs\n", page, word,
                    found, stamped(page, word));
            // The other threads may be waiting for UMap: no destructors.
            _exit(1);
        }
    }
}

static double cpu_seconds() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: umap_driver FILE PAGES THREADS SECONDS WARMUP_OPS\n");
        return 2;
    }
    const uint64_t pages = strtoull(argv[2], nullptr, 10), warm_ops = strtoull(argv[5], nullptr, 10);
    const unsigned count = strtoul(argv[3], nullptr, 10);
    const std::chrono::duration<double> seconds(atof(argv[4]));
    // As UMap's own tests open files; where the file system does not take it, through the page cache.
    int fd = open(argv[1], O_RDONLY | O_DIRECT);
    if (fd < 0) fd = open(argv[1], O_RDONLY);
    if (fd < 0) {
        perror(argv[1]);
        return 1;
    }
    void *map = umap(nullptr, pages * page_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        perror("umap");
        return 1;
    }
    const char *base = static_cast<const char *>(map);
    // Threads warm up together, wait for each other, and begin to count at one moment.
    std::atomic<uint64_t> warmed{0};
    std::atomic<unsigned> warm{0};
    std::atomic<bool> go{false};
    Clock::time_point begun;
    const auto warm_until = Clock::now() + seconds;
    std::vector<std::vector<uint64_t>> latencies(count);
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < count; number++) {
        threads.emplace_back([&, number] {
            uint64_t state = 0x5eed0000 + number;
            auto next = [&] { return mix(state += 0x9e3779b97f4a7c15u) % pages; };
            while (warmed.fetch_add(1) < warm_ops && Clock::now() < warm_until) look_at(base, next());
            warm++;
            while (!go) std::this_thread::yield();
            const auto until = begun + std::chrono::duration_cast<Clock::duration>(seconds);
            for (auto before = begun; before < until;) {
                look_at(base, next());
                const auto now = Clock::now();
                latencies[number].push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count());
                before = now;
            }
        });
    }
    while (warm < count) std::this_thread::yield();
    const double cpu = cpu_seconds();
    begun = Clock::now();
    go = true;
    for (auto &thread : threads) thread.join();
    const double took = std::chrono::duration<double>(Clock::now() - begun).count();
    const double used = cpu_seconds() - cpu;
    std::vector<uint64_t> all;
    for (auto &one : latencies) all.insert(all.end(), one.begin(), one.end());
    std::sort(all.begin(), all.end());
    auto at = [&](double share) { return all[std::min(all.size() - 1, size_t(all.size() * share))] / 1e3; };
    printf("{\"ops\": %zu, \"seconds\": %.6f, \"cpu_s\": %.6f, \"latency_us\": {\"p50\": %.3f, \"p99\": %.3f, \"p999\": %.3f, "
           "\"max\": %.3f}}\n",
           all.size(), took, used, at(0.5), at(0.99), at(0.999), all.back() / 1e3);
    fflush(stdout);
    uunmap(map, pages * page_bytes);
    return 0;
}
