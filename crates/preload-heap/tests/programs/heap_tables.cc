// Trees, tables, strings and rows of C++'s library, of which most do not fit; the answer is the same wherever they are.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

struct alignas(256) Aligned {
    uint64_t value;
};

int main(int argc, char **argv) {
    size_t count = argc > 1 ? strtoul(argv[1], nullptr, 10) : 8000;
    std::map<uint64_t, std::string> tree;
    std::unordered_map<std::string, uint64_t> table;
    std::vector<std::vector<uint32_t>> rows;
    std::vector<std::unique_ptr<Aligned>> aligned;
    uint64_t state = 1, hash = 14695981039346656037u;
    auto next = [&] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 20; };
    auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (size_t i = 0; i < count; i++) {
        uint64_t key = next() % (2 * count);
        tree[key] = std::string(20 + key % 100, static_cast<char>('a' + key % 26));
        table["key" + std::to_string(key)] = i;
        if (i % 10 == 0) rows.emplace_back(100 + key % 1000, static_cast<uint32_t>(key));
        if (i % 100 == 3) std::vector<uint32_t>().swap(rows[key % rows.size()]);
        if (i % 50 == 0) {
            aligned.push_back(std::make_unique<Aligned>());
            aligned.back()->value = key;
            mix(reinterpret_cast<uintptr_t>(aligned.back().get()) % alignof(Aligned));
        }
    }
    for (auto &[key, text] : tree) mix(key), mix(text.size()), mix(static_cast<unsigned char>(text[text.size() / 2]));
    for (size_t i = 0; i < count; i++) {
        auto found = table.find("key" + std::to_string(next() % (2 * count)));
        mix(found == table.end() ? 7 : found->second);
    }
    for (auto &row : rows) for (auto value : row) mix(value);
    for (auto &one : aligned) mix(one->value);
    try {
        mix(new (std::nothrow) char[SIZE_MAX / 4] != nullptr);
        char *volatile huge = new char[SIZE_MAX / 4 + (count == 0)];
        delete[] huge;
        return 1;
    } catch (const std::bad_alloc &) {
    }
    std::printf("%zu %zu %016lx\n", tree.size(), table.size(), hash);
}
