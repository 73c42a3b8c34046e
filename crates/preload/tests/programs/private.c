/* Private mappings that are only read, by the manual pages: within a budget they are the engine's, until they may be stored to. */
#include "check.h"

static int fd;

/* A new file, opened to be read, and a mapping of it. */
static uint8_t *fresh(const char *path) {
    /* The one before is there until then: it is another inode. */
    int before = fd;
    unlink(path);
    close(file_of(path, SIZE));
    fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    if (before > 0) close(before);
    uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED && (!has_budget() || kind_at(at) == 0));
    return at;
}

static void expect_file_unchanged(const char *path) {
    static uint8_t page[PAGE];
    for (size_t at = 0; at < SIZE; at += PAGE) {
        CHECK(pread(fd, page, PAGE, (off_t)at) == PAGE);
        for (size_t i = 0; i < PAGE; i++) CHECK(page[i] == pattern(at + i));
    }
    expect_in_file(path, 0, pattern(0));
    expect_in_file(path, 5 * MIB + 9, pattern(5 * MIB + 9));
}

/* Stores to every page of a part, at a byte that `expect` does not look at. */
static void store(uint8_t *part, size_t len, uint8_t what) {
    for (size_t i = 0; i < len; i += PAGE) part[i + PAGE - 9] = what;
}

static void expect_stored(const uint8_t *part, size_t len, uint8_t what) {
    for (size_t i = 0; i < len; i += PAGE) CHECK(part[i + PAGE - 9] == what);
}

static uint8_t *shown;
static _Atomic int done;

static void *look(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    long looks = 0;
    while (!done || looks < 100000) {
        size_t at = (size_t)rand_r(&random) % SIZE;
        CHECK(shown[at] == pattern(at));
        looks++;
    }
    return NULL;
}

/* Threads read while it changes hands; its bytes go into system calls, too. */
static void reads(const char *path) {
    shown = fresh(path);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, look, (void *)(i + 1)) == 0);
    int ends[2];
    CHECK(pipe(ends) == 0);
    for (int round = 0; round < 20; round++) {
        static uint8_t page[PAGE];
        for (size_t at = 0; at < SIZE; at += 37 * PAGE) {
            CHECK(write(ends[1], shown + at, PAGE) == PAGE && read(ends[0], page, PAGE) == PAGE);
            CHECK(memcmp(page, shown + at, PAGE) == 0 && page[100] == pattern(at + 100));
        }
        char kind = kind_at(shown);
        CHECK(kind == 'p' || kind == 0);
        usleep(1000);
    }
    done = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    catch_signal(SIGSEGV, 0);
    CHECK(raised_by_store(shown + MIB) == SIGSEGV && caught_code == SEGV_ACCERR);
    /* What is written to the file shows. */
    int writer = open(path, O_RDWR);
    CHECK(writer >= 0 && pwrite(writer, "!", 1, 3 * MIB) == 1 && shown[3 * MIB] == '!');
    CHECK(shown[3 * MIB] == '!' && shown[3 * MIB + 1] == pattern(3 * MIB + 1));
    CHECK(munmap(shown, SIZE) == 0);
}

static void stores(const char *path) {
    uint8_t *at = fresh(path);
    CHECK(at[7] == pattern(7));
    CHECK(mprotect(at, SIZE, RW) == 0);
    CHECK(kind_at(at) == 'p' && kind_at(at + SIZE - 1) == 'p');
    store(at, SIZE, 211);
    for (int round = 0; round < 3; round++) {
        expect(at, 0, SIZE);
        expect_stored(at, SIZE, 211);
        expect_file_unchanged(path);
        /* It stays the kernel's, whatever may be done to it. */
        CHECK(kind_at(at) == 'p');
        CHECK(mprotect(at, SIZE, round == 1 ? RW : PROT_READ) == 0);
    }
    CHECK(munmap(at, SIZE) == 0);
    expect_file_unchanged(path);
}

static void stores_to_a_part(const char *path) {
    uint8_t *at = fresh(path);
    CHECK(mprotect(at + 3 * MIB, MIB, RW) == 0);
    store(at + 3 * MIB, MIB, 212);
    expect_stored(at + 3 * MIB, MIB, 212);
    expect(at, 0, SIZE);
    catch_signal(SIGSEGV, 0);
    CHECK(raised_by_store(at + 3 * MIB - 1) == SIGSEGV && raised_by_store(at + 4 * MIB) == SIGSEGV);
    CHECK(mprotect(at + 3 * MIB, MIB, PROT_READ) == 0);
    CHECK(kind_at(at) == 'p' && kind_at(at + 3 * MIB) == 'p');
    expect_stored(at + 3 * MIB, MIB, 212);
    expect(at, 0, SIZE);
    expect_file_unchanged(path);
}

/* What was stored before it became one that is only read is never lost. */
static void private_pages(const char *path) {
    for (int round = 0; round < 20; round++) {
        uint8_t *at = fresh(path);
        /* The whole, or a page of it. */
        size_t start = round % 2 ? 5 * MIB : 0, len = round % 2 ? PAGE : SIZE;
        if (round % 4 > 1) usleep((unsigned)round * 300);
        CHECK(mprotect(at + start, len, RW) == 0);
        at[start + PAGE - 9] = 213;
        CHECK(mprotect(at, SIZE, PROT_READ) == 0);
        CHECK(at[start + PAGE - 9] == 213);
        expect(at, 0, SIZE);
        CHECK(at[start + PAGE - 9] == 213 && munmap(at, SIZE) == 0);
    }
    expect_file_unchanged(path);
}

/* The same with what was not stored to: that has nothing to lose. */
static void no_private_pages(const char *path) {
    uint8_t *at;
    int before;
    do {
        at = fresh(path);
        before = kind_at(at);
        CHECK(mprotect(at, SIZE, RW) == 0);
        expect(at, 0, SIZE);
        CHECK(mprotect(at, SIZE, PROT_READ) == 0);
    } while (before == 0 && !has_budget());
    expect(at, 0, SIZE);
    CHECK(munmap(at, SIZE) == 0);
}

static void children(const char *path) {
    uint8_t *at = fresh(path);
    for (int way = 0; way < 4; way++) {
        pid_t child = fork();
        if (child == 0) {
            if (way == 1) execl("/bin/true", "true", NULL);
            if (way != 2) expect(at, 0, SIZE);
            CHECK(mprotect(at, SIZE, RW) == 0);
            CHECK(kind_at(at) == 'p');
            store(at, SIZE, 214);
            expect(at, 0, SIZE);
            expect_stored(at, SIZE, 214);
            if (way == 3 && fork() == 0) {
                expect_stored(at, SIZE, 214);
                store(at, SIZE, 215);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        expect(at, 0, SIZE);
        for (size_t i = PAGE - 9; i < SIZE; i += PAGE) CHECK(at[i] == pattern(i));
        CHECK(kind_at(at) == 'p' || kind_at(at) == 0);
    }
    expect_file_unchanged(path);
    CHECK(mprotect(at, SIZE, RW) == 0);
    store(at, SIZE, 216);
    if (fork() == 0) {
        expect_stored(at, SIZE, 216);
        store(at, SIZE, 217);
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    expect_stored(at, SIZE, 216);
    expect_file_unchanged(path);
}

static void parts_go(const char *path) {
    catch_signal(SIGSEGV, 0);
    uint8_t *at = fresh(path);
    CHECK(munmap(at + 2 * MIB, MIB) == 0);
    CHECK(is_gone(at + 2 * MIB, pattern(2 * MIB)) && is_gone(at + 3 * MIB - 1, pattern(3 * MIB - 1)));
    /* What was between is anybody's by now. */
    expect(at, 0, 2 * MIB);
    expect(at + 3 * MIB, 3 * MIB, SIZE - 3 * MIB);
    CHECK(mprotect(at, 2 * MIB, RW) == 0);
    store(at, 2 * MIB, 218);
    CHECK(munmap(at, 2 * MIB) == 0);
    expect(at + 3 * MIB, 3 * MIB, SIZE - 3 * MIB);
    CHECK(munmap(at + 3 * MIB, SIZE - 3 * MIB) == 0);
    expect_file_unchanged(path);
    /* Other memory over a part. */
    at = fresh(path);
    CHECK(mmap(at + MIB, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + MIB);
    memset(at + MIB, 3, MIB);
    expect(at, 0, MIB);
    expect(at + 2 * MIB, 2 * MIB, SIZE - 2 * MIB);
    CHECK(at[MIB] == 3 && at[2 * MIB - 1] == 3 && munmap(at, SIZE) == 0);
    /* Of another length, at another place, and twice: which only shared ones can be. */
    at = fresh(path);
    CHECK(mremap(at, SIZE, SIZE - MIB, 0) == at);
    CHECK(is_gone(at + SIZE - MIB, pattern(SIZE - MIB)));
    at = mremap(at, SIZE - MIB, SIZE, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    expect(at, 0, SIZE);
    FAILS(mremap(at, 0, SIZE, MREMAP_MAYMOVE), EINVAL);
    uint8_t *room = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    expect(room, 0, SIZE);
    CHECK(mprotect(room, SIZE, RW) == 0);
    store(room, SIZE, 219);
    expect_stored(room, SIZE, 219);
    CHECK(munmap(room, SIZE) == 0);
    expect_file_unchanged(path);
}

static void beside_shared(const char *path) {
    uint8_t *at = fresh(path);
    int writer = open(path, O_RDWR);
    CHECK(writer >= 0);
    uint8_t *shared = map_all(writer);
    for (uint8_t round = 1; round < 20; round++) {
        shared[PAGE] = round;
        CHECK(msync(shared, SIZE, MS_SYNC) == 0 && at[PAGE] == round);
        expect(at + 2 * PAGE, 2 * PAGE, SIZE - 2 * PAGE);
        usleep(1000);
    }
    CHECK(mprotect(at, SIZE, RW) == 0);
    store(at, SIZE, 220);
    for (size_t i = PAGE - 9; i < SIZE; i += PAGE) CHECK(shared[i] == pattern(i));
    expect_stored(at, SIZE, 220);
    shared[PAGE] = pattern(PAGE);
    CHECK(munmap(shared, SIZE) == 0 && munmap(at, SIZE) == 0);
    expect_file_unchanged(path);
    close(writer);
    /* The other way round. */
    unlink(path);
    fd = file_of(path, SIZE);
    shared = map_all(fd);
    shared[PAGE] = 50;
    at = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED && at[PAGE] == 50);
    CHECK(at[PAGE] == 50 && mprotect(at, SIZE, RW) == 0);
    store(at, SIZE, 221);
    shared[PAGE] = pattern(PAGE);
    expect_stored(at, SIZE, 221);
    expect(shared, 0, SIZE);
    CHECK(munmap(shared, SIZE) == 0);
    expect_file_unchanged(path);
}

static void calls(const char *path) {
    uint8_t *at = fresh(path);
    uint8_t there[SIZE / PAGE];
    CHECK(msync(at, SIZE, MS_SYNC) == 0 && msync(at, SIZE, MS_ASYNC) == 0 && msync(at, SIZE, MS_INVALIDATE) == 0);
    FAILS(msync(at, SIZE, MS_SYNC | MS_ASYNC), EINVAL);
    CHECK(at[5] == pattern(5) && mincore(at, SIZE, there) == 0 && (there[0] & 1));
    CHECK(madvise(at, SIZE, MADV_RANDOM) == 0 && madvise(at, SIZE, MADV_WILLNEED) == 0);
    expect(at, 0, SIZE);
    CHECK(madvise(at, SIZE, MADV_DONTNEED) == 0);
    expect(at, 0, SIZE);
    FAILS(madvise(at, SIZE, MADV_POPULATE_WRITE), EINVAL);
    CHECK(madvise(at, SIZE, MADV_POPULATE_READ) == 0);
    FAILS(madvise(at, SIZE, MADV_REMOVE), EACCES);
    CHECK(munmap(at, SIZE) == 0);
    /* No access, and access again. */
    at = fresh(path);
    catch_signal(SIGSEGV, 0);
    CHECK(mprotect(at, SIZE, PROT_NONE) == 0 && raised_by_load(at + MIB) == SIGSEGV);
    CHECK(raised_by_load(at + MIB) == SIGSEGV && mprotect(at, SIZE, PROT_READ) == 0);
    expect(at, 0, SIZE);
    CHECK(munmap(at, SIZE) == 0);
    /* Locked memory. */
    at = fresh(path);
    CHECK(mlock(at, 16 * PAGE) == 0);
    expect(at, 0, SIZE);
    CHECK(munlock(at, 16 * PAGE) == 0 && mprotect(at, SIZE, RW) == 0);
    store(at, SIZE, 222);
    expect_stored(at, SIZE, 222);
    CHECK(munmap(at, SIZE) == 0);
    expect_file_unchanged(path);
}

/* Both kinds of one file, of bytes of their own each: what is stored to the one is the file's, and the other's only its own. */
static void beside_shared_parts(const char *path) {
    fd = file_of(path, SIZE);
    uint8_t *shared = mmap(NULL, 2 * MIB, RW, MAP_SHARED, fd, 0);
    uint8_t *private = mmap(NULL, 3 * MIB, PROT_READ, MAP_PRIVATE, fd, 2 * MIB);
    uint8_t *reader = mmap(NULL, 3 * MIB, PROT_READ, MAP_SHARED, fd, 5 * MIB);
    CHECK(shared != MAP_FAILED && private != MAP_FAILED && reader != MAP_FAILED);
    if (has_budget()) CHECK(kind_at(shared) == 0 && kind_at(private) == 0 && kind_at(reader) == 0);
    catch_signal(SIGSEGV, 0);
    for (int round = 0; round < 3; round++) {
        store(shared, 2 * MIB, (uint8_t)(230 + round));
        CHECK(raised_by_store(private + MIB) == SIGSEGV && raised_by_store(reader + MIB) == SIGSEGV);
        CHECK(msync(private, 3 * MIB, MS_SYNC) == 0 && msync(shared, 2 * MIB, MS_SYNC) == 0);
        uint8_t byte;
        CHECK(pread(fd, &byte, 1, MIB + PAGE - 9) == 1 && byte == 230 + round);
        CHECK(pwrite(fd, &byte, 1, 3 * MIB + PAGE - 9) == 1 && private[MIB + PAGE - 9] == 230 + round);
        expect(private, 2 * MIB, 3 * MIB);
        expect(reader, 5 * MIB, 3 * MIB);
    }
    if (has_budget()) CHECK(kind_at(shared) == 0 && kind_at(private) == 0 && kind_at(reader) == 0);
    CHECK(mprotect(private + MIB, MIB, RW) == 0 && kind_at(private) == 'p' && kind_at(shared) == 's');
    store(private + MIB, MIB, 240);
    store(shared, 2 * MIB, 241);
    expect_stored(private + MIB, MIB, 240);
    expect(private, 2 * MIB, 3 * MIB);
    FAILS(mprotect(reader, 3 * MIB, PROT_READ | 1 << 20), EINVAL);
    CHECK(mprotect(reader, 3 * MIB, RW) == 0);
    store(reader, 3 * MIB, 242);
    CHECK(munmap(shared, 2 * MIB) == 0 && munmap(private, 3 * MIB) == 0 && munmap(reader, 3 * MIB) == 0);
    expect_in_file(path, PAGE - 9, 241);
    expect_in_file(path, 3 * MIB + PAGE - 9, 232);
    expect_in_file(path, 4 * MIB + PAGE - 9, pattern(4 * MIB + PAGE - 9));
    expect_in_file(path, 5 * MIB + PAGE - 9, 242);
}

/* A mapping of the walk below. */
enum { PAGES = SIZE / PAGE, VIEWS = 5, AT = 77 };
struct view {
    uint8_t *at;
    size_t first, pages;
    int shared;
    /* Of each page: whether it may be stored to, and what a private one has of its own; -1: nothing. */
    uint8_t writable[PAGES];
    int own[PAGES];
};
static struct view views[VIEWS];
static uint8_t in_file[PAGES];

static void expect_view(const struct view *view, size_t page) {
    int own = view->own[page];
    CHECK(view->at[page * PAGE + AT] == (own < 0 ? in_file[view->first + page] : own));
}

static void make_view(struct view *view, int alone) {
    view->first = (size_t)rand() % (PAGES / 2);
    view->pages = PAGES / 16 + (size_t)rand() % (PAGES / 2 - PAGES / 16);
    view->shared = rand() % 2;
    int prot = view->shared && rand() % 2 ? RW : PROT_READ;
    view->at = mmap(NULL, view->pages * PAGE, prot, view->shared ? MAP_SHARED : MAP_PRIVATE, fd, (off_t)(view->first * PAGE));
    CHECK(view->at != MAP_FAILED);
    memset(view->writable, prot == RW, sizeof view->writable);
    memset(view->own, -1, sizeof view->own);
    if (alone && has_budget() && view->pages > MIB / PAGE) CHECK(kind_at(view->at) == 0);
}

/* Mappings of both kinds at random, which come, go and meet one another: each is what it is said to be, and the file has what it
 * should have. */
static void walk(const char *path) {
    fd = file_of(path, SIZE);
    for (size_t page = 0; page < PAGES; page++) in_file[page] = pattern(page * PAGE + AT);
    srand(5);
    catch_signal(SIGSEGV, 0);
    for (int round = 0; round < 60; round++) {
        for (int step = 0; step < 60; step++) {
            struct view *view = &views[rand() % VIEWS];
            if (view->at == NULL) {
                int others = 0;
                for (int i = 0; i < VIEWS; i++) others += views[i].at != NULL;
                /* Few at first, so that many are the engine's. */
                if (others <= step / 15) make_view(view, others == 0);
                continue;
            }
            size_t from = (size_t)rand() % view->pages, len = 1 + (size_t)rand() % (view->pages - from);
            uint8_t what = (uint8_t)(1 + rand() % 250);
            uint8_t *part = view->at + from * PAGE;
            switch (rand() % 12) {
            case 0:
                CHECK(munmap(view->at, view->pages * PAGE) == 0);
                view->at = NULL;
                continue;
            case 1:
                CHECK(pwrite(fd, &what, 1, (off_t)((view->first + from) * PAGE + AT)) == 1);
                in_file[view->first + from] = what;
                break;
            case 2:
                if (step < 30) break;
                CHECK(mprotect(part, len * PAGE, RW) == 0);
                memset(view->writable + from, 1, len);
                break;
            case 3:
                if (step < 30) break;
                CHECK(mprotect(view->at, view->pages * PAGE, PROT_READ) == 0);
                memset(view->writable, 0, sizeof view->writable);
                break;
            case 4:
                CHECK(madvise(part, len * PAGE, MADV_DONTNEED) == 0);
                for (size_t page = from; page < from + len; page++) view->own[page] = -1;
                break;
            case 5:
                /* The end of it goes. */
                if (from < PAGES / 16) break;
                CHECK(munmap(part, (view->pages - from) * PAGE) == 0);
                view->pages = from;
                break;
            default:
                for (size_t page = from; page < from + len; page++) {
                    if (!view->writable[page]) continue;
                    part[(page - from) * PAGE + AT] = what;
                    if (view->shared) in_file[view->first + page] = what;
                    else view->own[page] = what;
                }
                from = len = 0;
            }
            if (len && from < view->pages && !view->writable[from])
                CHECK(raised_by_store(view->at + from * PAGE + AT) == SIGSEGV);
            for (int i = 0; i < VIEWS; i++)
                for (int look = 0; views[i].at && look < 20; look++) expect_view(&views[i], (size_t)rand() % views[i].pages);
        }
        for (int i = 0; i < VIEWS; i++) {
            for (size_t page = 0; views[i].at && page < views[i].pages; page++) expect_view(&views[i], page);
            if (views[i].at) CHECK(munmap(views[i].at, views[i].pages * PAGE) == 0);
            views[i].at = NULL;
        }
        uint8_t byte;
        for (size_t page = 0; page < PAGES; page++)
            CHECK(pread(fd, &byte, 1, (off_t)(page * PAGE + AT)) == 1 && byte == in_file[page]);
    }
}

static struct test tests[] = {
    {"reads", reads},
    {"stores", stores},
    {"stores_to_a_part", stores_to_a_part},
    {"private_pages", private_pages},
    {"no_private_pages", no_private_pages},
    {"children", children},
    {"parts_go", parts_go},
    {"beside_shared", beside_shared},
    {"calls", calls},
    {"beside_shared_parts", beside_shared_parts},
    {"walk", walk},
};
RUN_ONE_OF(tests)
