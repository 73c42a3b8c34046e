/* Processes, their ends, and descriptors, around maps. */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>

static uint8_t *map;

static int wait_for(pid_t child) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* Dirties the file; returns what a byte of page `page` is now. */
static void dirty(uint8_t salt) {
    for (size_t i = 0; i < SIZE; i += PAGE) map[i] = (uint8_t)(i / PAGE + salt);
}

static void check_dirty(const uint8_t *at, uint8_t salt) {
    for (size_t i = 0; i < SIZE; i += PAGE) CHECK(at[i] == (uint8_t)(i / PAGE + salt));
}

static void check_file(const char *path, uint8_t salt) {
    int fd = open(path, O_RDONLY);
    uint8_t byte;
    for (size_t i = 0; i < SIZE; i += PAGE) CHECK(pread(fd, &byte, 1, (off_t)i) == 1 && byte == (uint8_t)(i / PAGE + salt));
    close(fd);
}

/* What a child does with the maps it was born with. */
static void live_as_child(void) {
    check_dirty(map, 1);
    map[PAGE + 1] = 100;
    CHECK(msync(map, SIZE, MS_SYNC) == 0);
    uint8_t *tail = map + SIZE / 2;
    CHECK(munmap(tail, SIZE / 2) == 0);
    check_dirty(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, open(getenv("FILE"), O_RDONLY), 0), 1);
    CHECK(map[PAGE + 1] == 100);
}

static void fork_child(const char *path) {
    setenv("FILE", path, 1);
    map = map_all(file_of(path, SIZE));
    dirty(1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        live_as_child();
        _exit(33);
    }
    CHECK(WEXITSTATUS(wait_for(child)) == 33);
    check_dirty(map, 1);
    dirty(2);
    child = _Fork();
    if (child == 0) {
        check_dirty(map, 2);
        _exit(34);
    }
    CHECK(WEXITSTATUS(wait_for(child)) == 34);
    expect_in_file(path, PAGE + 1, 100);
}

/* Whether the kernel has the mapping at an address: with the library, that is what the engine has given back. */
static int is_kernels(const void *at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long start, end, inode = 0;
    int found = -1;
    while (found < 0 && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &inode) == 3 && start <= (unsigned long)at &&
            (unsigned long)at < end)
            found = inode != 0;
    fclose(maps);
    return found;
}

/* Two processes and one file: each sees what the other stores, at once, and nothing that either stored is lost. */
static void fork_one_file(const char *path) {
    int fd = file_of(path, SIZE);
    map = map_all(fd);
    CHECK(ftruncate(fd, SIZE / 2) == 0 && ftruncate(fd, SIZE) == 0); /* half of it is a hole */
    dirty(1);
    _Atomic int *turn = (_Atomic int *)(map + 100 * PAGE + 64);
    *turn = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    for (int round = 0; round < 200; round++) {
        if (round % 2 == (child == 0)) {
            while (*turn != round) usleep(10);
            size_t at = (size_t)round * 9 * PAGE + 8;
            if (round > 0) CHECK(map[at - 9 * PAGE] == (uint8_t)(round - 1 + 3)); /* the other's */
            map[at] = (uint8_t)(round + 3);
            *turn = round + 1;
        }
    }
    if (child == 0) {
        CHECK(msync(map, SIZE, MS_SYNC) == 0);
        _exit(36);
    }
    CHECK(WEXITSTATUS(wait_for(child)) == 36);
    for (int round = 0; round < 200; round++) {
        CHECK(map[(size_t)round * 9 * PAGE + 8] == (uint8_t)(round + 3));
        map[(size_t)round * 9 * PAGE + 9] = 77;
    }
    CHECK(msync(map, SIZE, MS_SYNC) == 0 && munmap(map, SIZE) == 0);
    for (int round = 0; round < 200; round++) {
        uint8_t bytes[2];
        CHECK(pread(fd, bytes, 2, (off_t)round * 9 * PAGE + 8) == 2 && bytes[0] == (uint8_t)(round + 3) && bytes[1] == 77);
    }
    /* Mapped anew it is one file still. */
    map = map_all(fd);
    CHECK(map[8] == 3);
}

/* A child that reads and writes the file by system calls, and touches no map. */
static void fork_calls(const char *path) {
    int fd = file_of(path, SIZE);
    map = map_all(fd);
    dirty(1);
    int told[2];
    CHECK(pipe(told) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        CHECK(read(told[0], &byte, 1) == 1);
        check_file(path, 2); /* stored after the fork */
        CHECK(pwrite(open(path, O_RDWR), "c", 1, 50 * PAGE + 1) == 1);
        _exit(37);
    }
    dirty(2);
    CHECK(write(told[1], "x", 1) == 1);
    CHECK(WEXITSTATUS(wait_for(child)) == 37);
    CHECK(map[50 * PAGE + 1] == 'c');
}

/* A child that only executes a program costs the parent nothing: what the engine had it has. */
static void fork_exec_only(const char *path) {
    map = map_all(file_of(path, SIZE));
    dirty(1);
    int before = is_kernels(map);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            close_range(3, ~0u, 0);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        CHECK(wait_for(child) == 0);
    }
    CHECK(system("true") == 0);
    CHECK(is_kernels(map) == before && before == (getenv("LD_PRELOAD") == NULL));
    check_dirty(map, 1);
}

/* Children that outlive their parent, and a child's child that looks first; daemons fork twice. */
static void fork_orphans(const char *path) {
    for (int way = 0; way < 4; way++) {
        int fd = file_of(path, SIZE);
        int done[2], told[2];
        CHECK(pipe(done) == 0 && pipe(told) == 0);
        pid_t parent = fork();
        if (parent == 0) {
            map = map_all(fd);
            dirty(1);
            pid_t child = fork();
            if (child == 0) {
                if (fork() != 0) _exit(0);
                if (way & 1) close_range(3 + (done[1] == 3), (unsigned)-1, CLOSE_RANGE_CLOEXEC);
                char byte;
                CHECK(read(told[0], &byte, 1) == 1);
                check_dirty(map, 5);
                map[PAGE + 1] = 99;
                CHECK(msync(map, SIZE, MS_SYNC) == 0);
                CHECK(write(done[1], "y", 1) == 1);
                _exit(0);
            }
            CHECK(wait_for(child) == 0);
            dirty(5); /* after the fork, and before anybody has looked */
            if (way & 2) kill(getpid(), SIGKILL);
            _exit(0);
        }
        wait_for(parent);
        close(done[1]);
        CHECK(write(told[1], "x", 1) == 1);
        char byte;
        CHECK(read(done[0], &byte, 1) == 1);
        expect_in_file(path, PAGE + 1, 99);
        check_file(path, 5);
        close(done[0]);
        close(told[0]);
        close(told[1]);
        close(fd);
    }
}

/* Threads of parent and child at once, with pages that are locked, and one child after the other. */
static void *stir(void *arg) {
    for (int round = 0; round < 50; round++)
        for (size_t i = (size_t)arg * PAGE; i < SIZE; i += 16 * PAGE) __atomic_fetch_add((uint32_t *)(map + i + 16), 1, __ATOMIC_RELAXED);
    return arg;
}

static void fork_and_stir(const char *path) {
    int fd = file_of(path, SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) CHECK(pwrite(fd, "\0\0\0", 4, (off_t)i + 16) == 4);
    map = map_all(fd);
    CHECK(mlock(map + 8 * PAGE, 4 * PAGE) == 0);
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, stir, (void *)i) == 0);
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pthread_t own[3];
            for (size_t i = 0; i < 3; i++) CHECK(pthread_create(&own[i], NULL, stir, (void *)i) == 0);
            for (size_t i = 0; i < 3; i++) CHECK(pthread_join(own[i], NULL) == 0);
            _exit(38);
        }
        CHECK(WEXITSTATUS(wait_for(child)) == 38);
    }
    for (size_t i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (size_t i = 0; i < SIZE; i += PAGE) {
        size_t lane = i / PAGE % 16;
        CHECK(*(uint32_t *)(map + i + 16) == (lane < 3 ? 250 : lane < 4 ? 50 : 0));
    }
}

struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int turn;
};

static void *wait_for_turn(void *arg) {
    struct shared *shared = (struct shared *)(map + 7 * PAGE);
    CHECK(pthread_mutex_lock(&shared->mutex) == 0);
    while (shared->turn != 1) CHECK(pthread_cond_wait(&shared->cond, &shared->mutex) == 0);
    shared->turn = 2;
    CHECK(pthread_cond_broadcast(&shared->cond) == 0 && pthread_mutex_unlock(&shared->mutex) == 0);
    return arg;
}

/* Objects that processes share, in a file: a thread waits for what a child does. */
static void fork_and_wait(const char *path) {
    map = map_all(file_of(path, SIZE));
    struct shared *shared = (struct shared *)(map + 7 * PAGE);
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    CHECK(pthread_mutexattr_init(&mutex) == 0 && pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_condattr_init(&cond) == 0 && pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_mutex_init(&shared->mutex, &mutex) == 0 && pthread_cond_init(&shared->cond, &cond) == 0);
    shared->turn = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_turn, NULL) == 0);
    usleep(50000); /* so that it waits; if it does not yet, nothing is wrong */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(pthread_mutex_lock(&shared->mutex) == 0);
        shared->turn = 1;
        CHECK(pthread_cond_broadcast(&shared->cond) == 0);
        while (shared->turn != 2) CHECK(pthread_cond_wait(&shared->cond, &shared->mutex) == 0);
        CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
        _exit(39);
    }
    CHECK(WEXITSTATUS(wait_for(child)) == 39);
    CHECK(pthread_join(thread, NULL) == 0 && shared->turn == 2);
}

/* Takes a page out of memory, as far as it may go. */
static void put_out(void *at) {
    CHECK(msync(map, SIZE, MS_SYNC) == 0);
    CHECK(madvise((uint8_t *)at - (uintptr_t)at % PAGE, PAGE, MADV_DONTNEED) == 0);
}

static void *ends_with_mutex(void *arg) {
    pthread_mutex_t *mutex = arg;
    CHECK((mutex == (void *)(map + 7 * PAGE) ? pthread_mutex_lock : pthread_mutex_trylock)(mutex) == 0);
    put_out(mutex);
    return NULL;
}

static void *ends_with_word(void *arg) {
    syscall(SYS_set_tid_address, arg);
    put_out(arg);
    return NULL;
}

/* What the kernel does to memory when a thread ends: robust mutexes are released, and a word is cleared. */
static void owner_ends(const char *path) {
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    alarm(60);
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        int fd = file_of(path, SIZE);
        map = map_all(fd);
        pthread_mutex_t *mutex = (void *)(map + (7 + round) * PAGE);
        if (round < 2) {
            /* Made elsewhere: by these bytes. */
            pthread_mutex_t made;
            CHECK(pthread_mutex_init(&made, &attributes) == 0);
            memcpy(mutex, &made, sizeof made);
            CHECK(pthread_create(&thread, NULL, ends_with_mutex, mutex) == 0 && pthread_join(thread, NULL) == 0);
            CHECK(pthread_mutex_lock(mutex) == EOWNERDEAD && pthread_mutex_consistent(mutex) == 0);
            CHECK(pthread_mutex_unlock(mutex) == 0);
        } else {
            volatile int *word = (void *)mutex;
            *word = 77;
            CHECK(pthread_create(&thread, NULL, ends_with_word, mutex) == 0 && pthread_detach(thread) == 0);
            while (*word != 0) usleep(1000);
        }
        CHECK(munmap(map, SIZE) == 0 && close(fd) == 0);
    }
}

static int cloned(void *arg) {
    CHECK(arg == map);
    check_dirty(map, 1);
    return 35;
}

static void clone_child(const char *path) {
    map = map_all(file_of(path, SIZE));
    dirty(1);
    static _Alignas(16) char stack[65536];
    pid_t child = clone(cloned, stack + sizeof stack, SIGCHLD, map);
    CHECK(child > 0 && WEXITSTATUS(wait_for(child)) == 35);
    child = clone(cloned, stack + sizeof stack, SIGCHLD | CLONE_VM | CLONE_VFORK, map);
    CHECK(child > 0 && WEXITSTATUS(wait_for(child)) == 35);
    check_dirty(map, 1);
}

static void *fork_some(void *arg) {
    for (int round = 0; round < 8; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            check_dirty(map, 1);
            _exit(7);
        }
        CHECK(WEXITSTATUS(wait_for(child)) == 7);
    }
    return arg;
}

static void *touch_on(void *arg) {
    for (int round = 0; round < 20; round++) {
        check_dirty(map, 1);
        dirty(1);
    }
    return arg;
}

static void fork_in_threads(const char *path) {
    map = map_all(file_of(path, SIZE));
    dirty(1);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, i % 2 ? fork_some : touch_on, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    check_dirty(map, 1);
}

/* Other programs see what was stored, however they are made. */
static void programs(const char *path) {
    map = map_all(file_of(path, SIZE));
    char copy[512], command[1100];
    snprintf(copy, sizeof copy, "%s.copy", path);
    uint8_t salt = 1;
    dirty(salt);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/cp", "cp", path, copy, (char *)NULL);
        _exit(127);
    }
    CHECK(wait_for(child) == 0);
    check_file(copy, salt);
    dirty(++salt);
    child = fork();
    if (child == 0) {
        execlp("cp", "cp", "-f", "-p", "--", path, copy, (char *)NULL);
        _exit(127);
    }
    CHECK(wait_for(child) == 0);
    check_file(copy, salt);
    dirty(++salt);
    char *const argv[] = {"cp", (char *)path, copy, NULL};
    CHECK(posix_spawn(&child, "/bin/cp", NULL, NULL, argv, environ) == 0 && wait_for(child) == 0);
    check_file(copy, salt);
    dirty(++salt);
    CHECK(posix_spawnp(&child, "cp", NULL, NULL, argv, environ) == 0 && wait_for(child) == 0);
    check_file(copy, salt);
    dirty(++salt);
    snprintf(command, sizeof command, "cp %s %s", path, copy);
    CHECK(system(command) == 0);
    check_file(copy, salt);
    dirty(++salt);
    FILE *pipe = popen(command, "r");
    CHECK(pipe && pclose(pipe) == 0);
    check_file(copy, salt);
    CHECK(posix_spawn(&child, "/no/such/program", NULL, NULL, argv, environ) == ENOENT);
    check_dirty(map, salt);
    unlink(copy);
}

/* Each exec takes its arguments and its environment as it should, from a map too. */
static void execs(const char *path) {
    map = map_all(file_of(path, SIZE));
    /* A command line in the map, spread over pages that will not all be in memory. */
    const char *words[] = {"sh", "-c", "test \"$1$2$3$4$5$6$7$8\" = abcdefgh && test \"$X\" = y", "-", "a", "b", "c", "d", "e", "f", "g", "h"};
    char **argv = (char **)map, **env = (char **)(map + 2 * MIB);
    for (int i = 0; i < 12; i++) {
        argv[i] = (char *)map + MIB / 2 + (size_t)i * 10 * PAGE;
        strcpy(argv[i], words[i]);
    }
    argv[12] = NULL;
    env[0] = (char *)map + 3 * MIB;
    env[1] = NULL;
    strcpy(env[0], "X=y");
    char *shell = (char *)map + 4 * MIB;
    strcpy(shell, "/bin/sh");
    for (int way = 0; way < 9; way++) {
        /* Out of memory with all of it. */
        CHECK(madvise(map, SIZE, MADV_DONTNEED) == 0);
        pid_t child = way % 2 ? fork() : vfork();
        if (child == 0) {
            if (way == 0) execve(shell, argv, env);
            if (way == 1) environ = env, execv(shell, argv);
            if (way == 2) execvpe("sh", argv, env);
            if (way == 3) environ = env, execvp("sh", argv);
            if (way == 4) execle(shell, "sh", "-c", argv[2], "-", "a", "b", "c", "d", "e", "f", "g", "h", NULL, env);
            if (way == 5) environ = env, execl(shell, "sh", "-c", argv[2], "-", "a", "b", "c", "d", "e", "f", argv[10], "h", NULL);
            if (way == 6) execveat(AT_FDCWD, shell, argv, env, 0);
            if (way == 7) fexecve(open("/bin/sh", O_RDONLY | O_CLOEXEC), argv, env);
            if (way == 8) execle("/bin/true", "true", NULL, env);
            _exit(127);
        }
        int status = wait_for(child);
        if (status) fprintf(stderr, "way %d: status %x\n", way, status);
        CHECK(status == 0);
    }
    pid_t child;
    CHECK(posix_spawn(&child, shell, NULL, NULL, argv, env) == 0 && wait_for(child) == 0);
    /* More arguments than registers and small arrays hold. */
    char **many = malloc(3000 * sizeof *many);
    for (int i = 0; i < 2999; i++) many[i] = "x";
    many[2999] = NULL;
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, many, environ) == 0 && wait_for(child) == 0);
    FAILS(execl("/no/such/program", "x", NULL), ENOENT);
    FAILS(execlp("no-such-program", "x", "y", "z", "1", "2", "3", NULL), ENOENT);
}

/* The file is whole when the process is gone, whichever way it goes. */
static void ends(const char *path) {
    for (int way = 0; way < 6; way++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            map = map_all(file_of(path, SIZE));
            dirty((uint8_t)(way + 1));
            if (way == 0) _exit(3);
            if (way == 1) exit(3);
            if (way == 2) _Exit(3);
            if (way == 3) quick_exit(3);
            if (way == 4) execl("/bin/sh", "sh", "-c", "exit 3", NULL);
            if (way == 5) pthread_exit(NULL);
            _exit(4);
        }
        int status = wait_for(child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (way == 5 ? 0 : 3));
        check_file(path, (uint8_t)(way + 1));
    }
}

/* A process that is killed leaves its stores to somebody who writes them soon. */
static void killed(const char *path) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        map = map_all(file_of(path, SIZE));
        dirty(9);
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1 && kill(child, SIGKILL) == 0);
    CHECK(WTERMSIG(wait_for(child)) == SIGKILL);
    /* Whoever maps the file for writing waits until that is done. */
    map = map_all(open(path, O_RDWR));
    check_dirty(map, 9);
    CHECK(munmap(map, SIZE) == 0);
    check_file(path, 9);
}

/* What a worker has stored in each page, in memory that it shares with who kills it. */
static volatile uint64_t *stored_by(int memory) {
    void *at = mmap(NULL, SIZE / PAGE * sizeof(uint64_t), RW, MAP_SHARED, memory, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Stores until it is killed. */
static void killed_worker(const char *path) {
    volatile uint64_t *stored = stored_by(atoi(getenv("STORED")));
    uint8_t *bytes = map_all(open(path, O_RDWR));
    uint64_t random = (uint64_t)getpid();
    for (uint64_t count = 1;; count++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t page = (random >> 33) % (SIZE / PAGE);
        volatile uint64_t *word = (volatile uint64_t *)(bytes + page * PAGE);
        CHECK(*word == stored[page]);
        *word = stored[page] + 1;
        stored[page]++;
        if (count % 1000 == 0) CHECK(msync(bytes, SIZE, MS_SYNC) == 0);
    }
}

/* One that is killed at any moment, while its mappings change hands, say: what it had stored is in the file. */
static void killed_any_time(const char *path) {
    const char *effort = getenv("FASTMAP_EFFORT");
    int rounds = effort && strcmp(effort, "full") == 0 ? 200 : 25;
    enum { PAGES = SIZE / PAGE };
    int memory = memfd_create("stored", 0), file = file_of(path, SIZE);
    CHECK(memory >= 0 && ftruncate(memory, PAGES * sizeof(uint64_t)) == 0);
    volatile uint64_t *stored = stored_by(memory);
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t none = 0;
        CHECK(pwrite(file, &none, sizeof none, (off_t)(page * PAGE)) == sizeof none);
    }
    CHECK(fsync(file) == 0 && close(file) == 0);
    char number[16];
    snprintf(number, sizeof number, "%d", memory);
    CHECK(setenv("STORED", number, 1) == 0);
    for (int round = 0; round < rounds; round++) {
        uint64_t before = stored[0] + stored[1] + stored[2] + stored[3];
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            execl("/proc/self/exe", "process", "killed_worker", path, NULL);
            _exit(9);
        }
        for (int looks = 0; stored[0] + stored[1] + stored[2] + stored[3] == before && looks < 5000; looks++) usleep(1000);
        usleep((useconds_t)(round * 7919 % 145) * 1000);
        CHECK(kill(child, SIGKILL) == 0);
        int status = wait_for(child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        /* Whoever maps it for writing waits until all is there. */
        int again = open(path, O_RDWR);
        uint8_t *bytes = map_all(again);
        for (size_t page = 0; page < PAGES; page++) {
            uint64_t found = *(volatile uint64_t *)(bytes + page * PAGE);
            CHECK(found == stored[page] || found == stored[page] + 1);
            stored[page] = found;
        }
        /* Who has it open is in the way of who takes it over. */
        CHECK(munmap(bytes, SIZE) == 0 && close(again) == 0);
    }
}

/* Programs close all they see; the maps stay. */
static void closing(const char *path) {
    int fd = file_of(path, SIZE);
    map = map_all(fd);
    dirty(1);
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *one; (one = readdir(folder));) {
        int number = atoi(one->d_name);
        if (number > 2 && number != dirfd(folder)) close(number), count++;
    }
    closedir(folder);
    CHECK(count > 0);
    check_dirty(map, 1);
    dirty(2);
    closefrom(3);
    check_dirty(map, 2);
    dirty(3);
    CHECK(close_range(3, ~0u, 0) == 0);
    FAILS(close_range(10, 3, 0), EINVAL);
    check_dirty(map, 3);
    dirty(4);
    for (int number = 3; number < 5000; number++) close(number);
    check_dirty(map, 4);
    FAILS(close(fd), EBADF);
    fd = open(path, O_RDONLY);
    CHECK(fd == 3 && dup2(fd, 77) == 77 && dup2(fd, fd) == fd && dup3(fd, 78, O_CLOEXEC) == 78);
    FAILS(dup2(900, 5), EBADF);
    FAILS(dup3(fd, fd, 0), EINVAL);
    CHECK(close_range(70, 80, CLOSE_RANGE_CLOEXEC) == 0 && fcntl(77, F_GETFD) == FD_CLOEXEC);
    dirty(5);
    CHECK(msync(map, SIZE, MS_SYNC) == 0);
    check_file(path, 5);
    CHECK(munmap(map, SIZE) == 0);
}

/* Whether another process finds the file locked (fcntl(2) record locks). */
static int is_locked(const char *path) {
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        _exit(fcntl(open(path, O_RDWR), F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK ? 1 : 0);
    }
    return WEXITSTATUS(wait_for(child));
}

/* The program's record locks last until it closes the file itself, whatever is mapped and unmapped meanwhile. */
static void record_locks(const char *path) {
    int fd = file_of(path, SIZE);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && is_locked(path));
    map = map_all(fd);
    dirty(1);
    CHECK(is_locked(path));
    CHECK(munmap(map, SIZE) == 0);
    CHECK(is_locked(path));
    map = map_all(fd);
    check_dirty(map, 1);
    CHECK(munmap(map, SIZE) == 0 && is_locked(path));
    CHECK(close(fd) == 0 && !is_locked(path));
    fd = open(path, O_RDWR);
    CHECK(lockf(fd, F_TLOCK, 1) == 0);
    map = map_all(fd);
    CHECK(munmap(map, SIZE) == 0 && is_locked(path));
    CHECK(close(fd) == 0 && !is_locked(path));
    /* However it came by the lock. */
    fd = open(path, O_RDWR);
    CHECK(syscall(SYS_fcntl, fd, F_SETLK, &lock) == 0);
    map = map_all(fd);
    CHECK(munmap(map, SIZE) == 0 && is_locked(path));
}

/* A file may be locked whole while it is mapped, and nobody is told that another has. */
static void whole_locks(const char *path) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET}, none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    for (int way = 0; way < 4; way++) {
        int fd = file_of(path, SIZE);
        map = map_all(fd);
        dirty((uint8_t)(way + 1));
        struct flock found = whole;
        if (way == 0) CHECK(fcntl(fd, F_SETLK, &whole) == 0);
        if (way == 1) CHECK(lockf(fd, F_LOCK, 0) == 0);
        if (way == 2) CHECK(syscall(SYS_fcntl, fd, F_SETLKW, &whole) == 0);
        if (way == 3) CHECK(fcntl(fd, F_GETLK, &found) == 0 && found.l_type == F_UNLCK);
        check_dirty(map, (uint8_t)(way + 1));
        dirty((uint8_t)(way + 11));
        CHECK(fcntl(fd, F_SETLK, &none) == 0);
        CHECK(munmap(map, SIZE) == 0 && close(fd) == 0);
        check_file(path, (uint8_t)(way + 11));
        CHECK(unlink(path) == 0);
    }
    CHECK(close(file_of(path, SIZE)) == 0);
}

/* What is unlocked whole, or locked to be read from, stays where it is. */
static void unlocked_whole(const char *path) {
    int fd = file_of(path, SIZE);
    struct flock none = {.l_type = F_UNLCK, .l_whence = SEEK_SET}, shared = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(fd, F_SETLK, &none) == 0 && lockf(fd, F_ULOCK, 0) == 0);
    const uint8_t *reading = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(reading != MAP_FAILED);
    CHECK(fcntl(fd, F_SETLK, &none) == 0 && lockf(fd, F_ULOCK, 0) == 0);
    CHECK(fcntl(fd, F_SETLK, &shared) == 0 && syscall(SYS_fcntl, fd, F_SETLK, &none) == 0);
    const char *preload = getenv("LD_PRELOAD");
    int stays = preload && strstr(preload, "fastmap");
    CHECK(is_kernels(reading) == !stays);
    CHECK(munmap((void *)reading, SIZE) == 0);
    map = map_all(fd);
    CHECK(fcntl(fd, F_SETLK, &none) == 0 && lockf(fd, F_ULOCK, 0) == 0);
    dirty(3);
    CHECK(is_kernels(map) == !stays);
}

static void *map_late(void *path) {
    usleep(20000);
    map = map_all(file_of(path, SIZE));
    dirty(5);
    return NULL;
}

/* The first thread has ended before the first file is mapped: the process ends with its last. */
/* capset(2) is the calling thread's: a program of one thread means all that the process can do. And setuid(2) works before it. */
static void gives_up_rights(const char *path) {
    map = map_all(file_of(path, SIZE));
    dirty(1);
    CHECK(setgid(getgid()) == 0 && setuid(getuid()) == 0);
    struct {
        unsigned version;
        int pid;
    } header = {0x20080522, 0};
    unsigned none[6] = {0};
    CHECK(syscall(SYS_capset, &header, none) == 0);
    DIR *folder = opendir("/proc/self/task/.");
    CHECK(folder);
    int seen = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        char name[300], line[256];
        snprintf(name, sizeof name, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(name, "r");
        if (!status) continue;
        /* One that the kernel keeps for io_uring(7) runs nothing of the program's. */
        CHECK(fgets(line, sizeof line, status));
        if (!strncmp(line, "Name:\tiou-", 10)) {
            fclose(status);
            continue;
        }
        while (fgets(line, sizeof line, status)) {
            if (!strncmp(line, "CapEff:", 7) || !strncmp(line, "CapPrm:", 7) || !strncmp(line, "CapInh:", 7)) {
                if (strtoull(line + 7, NULL, 16)) fprintf(stderr, "thread %s: %s", entry->d_name, line);
                CHECK(!strtoull(line + 7, NULL, 16));
                seen++;
            }
        }
        fclose(status);
    }
    closedir(folder);
    CHECK(seen && seen % 3 == 0);
    /* What the threads still have to do they can do. */
    dirty(2);
    CHECK(msync(map, SIZE, MS_SYNC) == 0);
    check_file(path, 2);
}

static void first_thread_ends(const char *path) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *none[] = {NULL};
        execve("/proc/self/exe", (char *[]){"process", "ends_before_it_maps", (char *)path, NULL}, environ ? environ : none);
        _exit(9);
    }
    int status = wait_for(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_file(path, 5);
}

static void ends_before_it_maps(const char *path) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, map_late, strdup(path)) == 0);
    pthread_exit(NULL);
}

/* A thread whose descriptor table is another than that of the threads that were there: what it maps then reaches the file. */
static void own_table(const char *path) {
    char other[4096];
    snprintf(other, sizeof other, "%.4000s.other", path);
    map = map_all(file_of(path, SIZE));
    dirty(1);
    CHECK(close_range(3, ~0u, CLOSE_RANGE_UNSHARE) == 0);
    check_dirty(map, 1);
    int fd = file_of(other, SIZE);
    uint8_t *second = map_all(fd);
    for (size_t at = 0; at < SIZE; at += PAGE) second[at] = 77;
    CHECK(msync(second, SIZE, MS_SYNC) == 0);
    for (size_t at = 0; at < SIZE; at += PAGE) {
        uint8_t byte;
        CHECK(pread(fd, &byte, 1, (off_t)at) == 1 && byte == 77);
    }
    CHECK(munmap(second, SIZE) == 0);
    /* A file that was mapped before: all its maps agree. */
    second = map_all(open(path, O_RDWR));
    dirty(2);
    check_dirty(second, 2);
    CHECK(msync(second, SIZE, MS_SYNC) == 0);
    check_file(path, 2);
    CHECK(munmap(second, SIZE) == 0 && munmap(map, SIZE) == 0 && unlink(other) == 0);
    check_file(path, 2);
}

/* A library that is loaded later maps files as the program does. */
static void loaded(const char *path) {
    int fd = file_of(path, SIZE);
    void *library = dlopen(getenv("LOADED"), RTLD_NOW);
    CHECK(library);
    uint8_t *(*map_it)(int, size_t) = (uint8_t *(*)(int, size_t))dlsym(library, "map_it");
    CHECK(map_it);
    map = map_it(fd, SIZE);
    CHECK(map != MAP_FAILED);
    dirty(6);
    CHECK(dlclose(library) == 0);
    check_dirty(map, 6);
    CHECK(munmap(map, SIZE) == 0);
    check_file(path, 6);
}

/* A process that goes on in the background. */
static void in_background(const char *path) {
    int done[2];
    CHECK(pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(daemon(1, 1) == 0);
        map = map_all(file_of(path, SIZE));
        dirty(8);
        CHECK(munmap(map, SIZE) == 0);
        CHECK(write(done[1], "x", 1) == 1);
        exit(0);
    }
    CHECK(wait_for(child) == 0);
    close(done[1]);
    char byte;
    CHECK(read(done[0], &byte, 1) == 1);
    check_file(path, 8);
    /* Until it is gone, and has written its statistics. */
    CHECK(read(done[0], &byte, 1) == 0);
}

static struct test tests[] = {
    {"fork_child", fork_child},
    {"fork_one_file", fork_one_file},
    {"fork_calls", fork_calls},
    {"fork_exec_only", fork_exec_only},
    {"fork_orphans", fork_orphans},
    {"fork_and_stir", fork_and_stir},
    {"fork_and_wait", fork_and_wait},
    {"clone_child", clone_child},
    {"fork_in_threads", fork_in_threads},
    {"owner_ends", owner_ends},
    {"programs", programs},
    {"execs", execs},
    {"ends", ends},
    {"killed", killed},
    {"killed_any_time", killed_any_time},
    {"killed_worker", killed_worker},
    {"closing", closing},
    {"record_locks", record_locks},
    {"whole_locks", whole_locks},
    {"unlocked_whole", unlocked_whole},
    {"gives_up_rights", gives_up_rights},
    {"first_thread_ends", first_thread_ends},
    {"ends_before_it_maps", ends_before_it_maps},
    {"own_table", own_table},
    {"loaded", loaded},
    {"in_background", in_background},
};
RUN_ONE_OF(tests)
