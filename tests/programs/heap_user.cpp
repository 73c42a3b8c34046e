// A program that uses its heap in all ways the C library and C++ have, checks what it finds there, and prints digests.
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

static void check(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "heap_user: %s\n", what);
    _exit(1);
}

static uint64_t mix(uint64_t sum, const void *bytes, size_t size) {
    auto at = static_cast<const unsigned char *>(bytes);
    for (size_t i = 0; i < size; i++) sum = (sum ^ at[i]) * 0x100000001b3;
    return sum;
}

// Many small objects in trees and hash tables, looked up at random while they come and go.
static uint64_t containers() {
    std::mt19937_64 chance(1);
    std::map<uint64_t, std::string> tree;
    std::unordered_map<std::string, std::vector<uint32_t>> table;
    for (int i = 0; i < 60000; i++) {
        uint64_t key = chance() % 50000;
        tree[key] = std::string(key % 700 + 20, 'a' + key % 26);
        auto &list = table[std::to_string(key % 9000)];
        for (int j = 0; j < 16; j++) list.push_back(i * j);
        if (i % 3 == 0) tree.erase(chance() % 50000);
    }
    uint64_t sum = 0;
    for (auto &[key, text] : tree) {
        check(text.size() == key % 700 + 20 && text.back() == char('a' + key % 26), "a string changed");
        sum = mix(sum, text.data(), text.size());
    }
    for (int i = 0; i < 9000; i++) {
        auto &list = table[std::to_string(i)];
        sum = mix(sum, list.data(), list.size() * sizeof list[0]) + list.size();
    }
    return sum;
}

// Blocks of all sizes, each with a pattern of its own, grown, shrunk, aligned, freed by whichever thread comes to it.
struct Block {
    unsigned char *bytes;
    size_t size;
    unsigned char mark;
};

static Block allocate(std::mt19937_64 &chance) {
    static const size_t kinds[] = {24, 300, 5000, 70000, 400000};
    size_t size = chance() % kinds[chance() % 5] + 1;
    void *bytes = nullptr;
    switch (chance() % 5) {
        case 0: bytes = malloc(size); break;
        case 1:
            bytes = calloc(size, 1);
            for (size_t i = 0; i < size; i++) check(static_cast<char *>(bytes)[i] == 0, "calloc is not zero");
            break;
        case 2:
            check(posix_memalign(&bytes, 4096, size) == 0 && uintptr_t(bytes) % 4096 == 0, "posix_memalign");
            break;
        case 3:
            bytes = aligned_alloc(64, (size + 63) / 64 * 64);
            check(uintptr_t(bytes) % 64 == 0, "aligned_alloc");
            break;
        case 4: bytes = realloc(malloc(16), size); break;
    }
    check(bytes && malloc_usable_size(bytes) >= size, "no memory");
    Block block{static_cast<unsigned char *>(bytes), size, static_cast<unsigned char>(chance())};
    memset(block.bytes, block.mark, size);
    return block;
}

static void verify(const Block &block) {
    for (size_t i = 0; i < block.size; i += i + 61 < block.size ? 61 : 1)
        check(block.bytes[i] == block.mark, "a block changed");
}

static void blocks() {
    constexpr int THREADS = 3;
    std::vector<std::vector<Block>> kept(THREADS);
    auto each = [&](auto task) {
        std::vector<std::thread> threads;
        for (int t = 0; t < THREADS; t++) threads.emplace_back(task, t);
        for (auto &thread : threads) thread.join();
    };
    each([&](int t) {
        std::mt19937_64 chance(t);
        for (int i = 0; i < 600; i++) {
            kept[t].push_back(allocate(chance));
            if (i % 4) continue;
            Block &block = kept[t][chance() % kept[t].size()];
            size_t size = block.size * (1 + chance() % 3) / 2 + 1;
            block.bytes = static_cast<unsigned char *>(realloc(block.bytes, size));
            check(block.bytes, "realloc");
            for (size_t j = 0; j < std::min(size, block.size); j += 97) check(block.bytes[j] == block.mark, "realloc lost bytes");
            memset(block.bytes, block.mark, size);
            block.size = size;
        }
    });
    size_t all = 0;
    for (auto &some : kept)
        for (auto &block : some) all += block.size;
    printf("blocks of %zu bytes\n", all);
    each([&](int t) {
        for (auto &block : kept[(t + 1) % THREADS]) { // another thread's
            verify(block);
            free(block.bytes);
        }
    });
}

// One array that grows beyond what the cache holds many times, and an anonymous mapping as large; sorted, summed, sent
// through a pipe and a file, so the kernel reads and writes the heap.
static uint64_t large() {
    std::vector<uint64_t> numbers;
    std::mt19937_64 chance(5);
    for (int i = 0; i < 2 << 20; i++) numbers.push_back(chance());
    for (int i = 0; i < 30000; i++) std::swap(numbers[chance() % numbers.size()], numbers[chance() % numbers.size()]);
    size_t bytes = numbers.size() * sizeof numbers[0];
    auto map = static_cast<char *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    check(map != MAP_FAILED, "mmap");
    FILE *file = tmpfile();
    check(file && fwrite(numbers.data(), 1, bytes, file) == bytes && fflush(file) == 0, "fwrite");
    check(pread(fileno(file), map, bytes, 0) == ssize_t(bytes), "pread into the mapping");
    check(memcmp(map, numbers.data(), bytes) == 0, "what was read differs");
    check(munmap(map + bytes / 2, bytes / 2) == 0, "munmap");
    check(madvise(map, bytes / 4, MADV_DONTNEED) == 0, "madvise");
    for (size_t i = 0; i < bytes / 4; i += 4096) check(map[i] == 0, "dropped memory is not zero");
    check(memcmp(map + bytes / 4, reinterpret_cast<char *>(numbers.data()) + bytes / 4, bytes / 4) == 0, "munmap took too much");
    munmap(map, bytes / 2);
    rewind(file);
    std::unique_ptr<char[]> again(new char[bytes]);
    check(fread(again.get(), 1, bytes, file) == bytes && memcmp(again.get(), numbers.data(), bytes) == 0, "fread");
    fclose(file);
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    std::thread sender([&] {
        for (size_t sent = 0; sent < bytes;) {
            ssize_t now = write(ends[1], again.get() + sent, bytes - sent);
            check(now > 0, "write to a pipe");
            sent += now;
        }
        close(ends[1]);
    });
    std::vector<char> received(bytes);
    for (size_t had = 0; had < bytes;) {
        ssize_t now = read(ends[0], received.data() + had, bytes - had);
        check(now > 0, "read from a pipe");
        had += now;
    }
    sender.join();
    return mix(0, received.data(), bytes);
}

int main() {
    printf("containers %016lx\n", containers());
    blocks();
    printf("large %016lx\n", large());
}
