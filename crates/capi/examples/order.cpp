// Sorts a file of 64-bit numbers in place, through the standard library, in as much memory as it is given.
//
//     order FILE CACHE_BYTES
//
//     c++ -o order order.cpp $(pkg-config --cflags --libs fastmap)
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fastmap.h>
#include <fcntl.h>
#include <iostream>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// A cache of its own; maps keep what they need of it when the handle goes.
class Cache {
public:
    explicit Cache(size_t bytes) : handle(fm_cache_create(bytes)) {
        if (handle == nullptr)
            throw std::runtime_error(fm_last_error());
    }
    ~Cache() { fm_cache_destroy(handle); }
    Cache(const Cache &) = delete;
    Cache &operator=(const Cache &) = delete;

    fm_cache *get() const { return handle; }

private:
    fm_cache *handle;
};

// A file of Ts, as a range that algorithms take.
template <typename T> class Mapped {
public:
    Mapped(const Cache &cache, const std::string &path) : start(nullptr), count(0) {
        int fd = open(path.c_str(), O_RDWR);
        struct stat facts;
        if (fd < 0 || fstat(fd, &facts) != 0)
            throw std::runtime_error(path + " cannot be opened");
        count = static_cast<size_t>(facts.st_size) / sizeof(T);
        void *at = fm_mmap_in(cache.get(), nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (at == MAP_FAILED)
            throw std::runtime_error(fm_last_error());
        start = static_cast<T *>(at);
    }
    ~Mapped() { fm_munmap(start, bytes()); }
    Mapped(const Mapped &) = delete;
    Mapped &operator=(const Mapped &) = delete;

    T *begin() { return start; }
    T *end() { return start + count; }
    size_t bytes() const { return count * sizeof(T); }

    void flush() {
        if (fm_msync(start, bytes(), MS_SYNC) != 0)
            throw std::runtime_error(fm_last_error());
    }

private:
    T *start;
    size_t count;
};

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::cerr << "usage: order FILE CACHE_BYTES\n";
        return 2;
    }
    try {
        Cache cache(std::strtoull(argv[2], nullptr, 10));
        Mapped<uint64_t> numbers(cache, argv[1]);
        std::sort(numbers.begin(), numbers.end());
        numbers.flush();
        struct fm_stats stats; // the type: there is a function of this name too, as with stat(2)
        if (fm_stats(cache.get(), &stats, sizeof stats) != 0)
            throw std::runtime_error(fm_last_error());
        std::cout << (numbers.end() - numbers.begin()) << " numbers, "
                  << (std::is_sorted(numbers.begin(), numbers.end()) ? "in order" : "in disorder") << "\n";
        std::cerr << stats.resident_pages << " pages in memory, " << stats.evicted_pages << " evicted\n";
    } catch (const std::exception &error) {
        std::cerr << "order: " << error.what() << "\n";
        return 1;
    }
    return 0;
}
