/* Programs that count their threads, or enter a sandbox, after they have mapped a file. */
#include "check.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static uint8_t *map;

/* Maps the file and uses it so that there are dirty pages, and pages read ahead. */
static void use(const char *path, int prot) {
    int fd = file_of(path, SIZE);
    map = mmap(NULL, SIZE, prot, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0);
    expect(map, 0, SIZE / 2);
    if (prot & PROT_WRITE)
        for (size_t i = 0; i < SIZE / 4; i += PAGE) map[i] = 200;
}

/* The mapping is as it was, and goes on. */
static void go_on(int prot) {
    if (prot & PROT_WRITE) {
        for (size_t i = 0; i < SIZE / 4; i += PAGE) {
            CHECK(map[i] == 200);
            map[i] = pattern(i);
        }
        for (size_t i = 0; i < SIZE; i += 8 * PAGE) map[i + 5] = 201;
        for (size_t i = 0; i < SIZE; i += 8 * PAGE) {
            CHECK(map[i + 5] == 201);
            map[i + 5] = pattern(i + 5);
        }
    }
    expect(map, 0, SIZE);
}

static unsigned long threads(void) {
    struct stat folder;
    CHECK(stat("/proc/self/task", &folder) == 0);
    return folder.st_nlink - 2;
}

/* There is one thread, and if not, which. */
static void expect_one(unsigned long count) {
    if (count != 1) CHECK(system("cat /proc/$PPID/task/*/comm >&2") == 0);
    CHECK(count == 1);
}

/* Each way to look finds one thread. */
static void counts(const char *path) {
    const int prots[] = {PROT_READ, RW};
    for (int way = 0; way < 8; way++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            use(path, prots[way % 2]);
            if (way / 2 == 0) expect_one(threads());
            if (way / 2 == 1) {
                struct stat folder;
                int proc = open("/proc", O_RDONLY | O_DIRECTORY);
                CHECK(fstatat(proc, "self/task/", &folder, 0) == 0);
                expect_one(folder.st_nlink - 2);
            }
            if (way / 2 == 2) {
                struct stat folder;
                int tasks = open("/proc/self/task/", O_RDONLY | O_DIRECTORY);
                CHECK(fstat(tasks, &folder) == 0);
                expect_one(folder.st_nlink - 2);
            }
            if (way / 2 == 3) {
                DIR *tasks = opendir("/proc/self/task");
                unsigned long count = 0;
                for (struct dirent *one; (one = readdir(tasks));) count += one->d_name[0] != '.';
                expect_one(count);
            }
            go_on(prots[way % 2]);
            expect_one(threads());
            /* What is mapped now is right as well. */
            uint8_t *again = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
            CHECK(again != MAP_FAILED);
            expect(again, 0, SIZE);
            expect_one(threads());
            CHECK(munmap(map, SIZE) == 0);
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

/* A program with threads of its own keeps the engine's: it has more than one either way. */
static void *count_twice(void *barrier) {
    CHECK(threads() > 1);
    expect(map, 0, SIZE);
    CHECK(threads() > 1);
    pthread_barrier_wait(barrier);
    return NULL;
}

static void many(const char *path) {
    use(path, RW);
    go_on(RW);
    pthread_barrier_t barrier;
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(pthread_create(&thread, NULL, count_twice, &barrier) == 0);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
}

/* Runs the case in a child, so that what it may not do any more is not missed; it must end with 0. */
static void apart(void (*run)(const char *), const char *path) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run(path);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) fprintf(stderr, "ended with status %#x\n", status);
    CHECK(status == 0);
}

static void in_namespace(const char *path) {
    use(path, RW);
    CHECK(unshare(CLONE_NEWUSER) == 0 || errno == EPERM || errno == ENOSPC);
    go_on(RW);
}

static void namespaces(const char *path) { apart(in_namespace, path); }

/* The first process of a new process namespace is the program's: as long as it lives others can be made. */
static void in_processes(const char *path) {
    use(path, PROT_READ);
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        CHECK(errno == EPERM || errno == ENOSPC);
        return;
    }
    int fd = open(path, O_RDWR);
    uint8_t *other = map_all(fd);
    other[3] = pattern(3);
    pid_t first = fork();
    CHECK(first >= 0);
    if (first == 0) _exit(getpid() == 1 ? 0 : 1);
    int status;
    CHECK(waitpid(first, &status, 0) == first && status == 0);
    go_on(PROT_READ);
}

static void processes(const char *path) { apart(in_processes, path); }

/* From here on this process may read, write, send signals to nobody, and end. */
static void enter_sandbox(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (getenv("BY_NUMBER"))
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    else
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void in_sandbox(const char *path) {
    use(path, RW);
    enter_sandbox();
    go_on(RW);
    map[17] = 202;
    CHECK(write(1, map + 17, 0) == 0);
}

static void sandbox(const char *path) {
    apart(in_sandbox, path);
    expect_in_file(path, 17, 202);
    setenv("BY_NUMBER", "", 1);
    apart(in_sandbox, path);
    expect_in_file(path, 17, 202);
}

/* The parent has the engine, and a child made by fork(2) enters the sandbox with the maps that it was born with. */
static void child_in_sandbox(const char *path) {
    use(path, RW);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        enter_sandbox();
        go_on(RW);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

/* What fails changes nothing: a file that is mapped afterwards is served, which the statistics say. */
static void probes(const char *path) {
    FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL), EFAULT);
    FAILS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0), EFAULT);
    FAILS(unshare(CLONE_NEWUSER | 0x10), EINVAL);
    FAILS(setns(-1, CLONE_NEWUSER), EBADF);
    struct stat folder;
    CHECK(stat("/proc/1/task", &folder) == 0);
    use(path, RW);
    /* And again, with threads of the library's that could be in the way. */
    FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL), EFAULT);
    FAILS(unshare(CLONE_NEWUSER | 0x10), EINVAL);
    FAILS(setns(-1, CLONE_NEWUSER), EBADF);
    go_on(RW);
}

static const struct test tests[] = {
    {"probes", probes},
    {"counts", counts}, {"many", many}, {"namespaces", namespaces}, {"processes", processes},
    {"sandbox", sandbox}, {"child_in_sandbox", child_in_sandbox},
};
RUN_ONE_OF(tests)
