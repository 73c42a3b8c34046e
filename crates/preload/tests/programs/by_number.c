/* System calls by number, through syscall(2): as by name. */
#include "check.h"
#include <linux/io_uring.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>

static uint8_t *map;

static uint8_t *map_by_number(int fd, size_t len, int prot) {
    uint8_t *at = (uint8_t *)syscall(SYS_mmap, NULL, len, prot, MAP_SHARED, fd, 0L);
    CHECK(at != MAP_FAILED);
    return at;
}

static void maps(const char *path) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0644L);
    CHECK(fd >= 0 && close(fd) == 0);
    fd = file_of(path, SIZE);
    map = map_by_number(fd, SIZE, RW);
    expect(map, 0, SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) map[i] = 7;
    CHECK(syscall(SYS_msync, map, MIB, (long)MS_SYNC) == 0);
    expect_in_file(path, 5 * PAGE, 7);
    CHECK(syscall(SYS_madvise, map, SIZE, (long)MADV_DONTNEED) == 0 && map[6 * PAGE] == 7);
    unsigned char resident[2] = {0};
    CHECK(syscall(SYS_mincore, map + 6 * PAGE, PAGE, resident) == 0 && resident[0] & 1);
    CHECK(syscall(SYS_mlock, map, PAGE) == 0 && syscall(SYS_mlock2, map + PAGE, PAGE, 0L) == 0);
    CHECK(syscall(SYS_munlock, map, PAGE) == 0 && syscall(SYS_munlockall) == 0);
    catch_signal(SIGSEGV, 0);
    CHECK(syscall(SYS_mprotect, map, MIB, (long)PROT_READ) == 0);
    CHECK(raised_by_store(map + 9 * PAGE) == SIGSEGV && raised_by_load(map + 9 * PAGE) == 0);
    CHECK(syscall(SYS_mprotect, map, MIB, (long)RW) == 0 && raised_by_store(map + 9 * PAGE) == 0);
    CHECK(syscall(SYS_munmap, map + 2 * MIB, MIB) == 0);
    CHECK(is_gone(map + 2 * MIB, 7));
    CHECK(syscall(SYS_mremap, map + 3 * MIB, 5 * MIB, 4 * MIB, 0L) == (long)(map + 3 * MIB));
    CHECK(is_gone(map + 7 * MIB, 7) && raised_by_load(map + 6 * MIB) == 0);
    /* Another memory over a part of it stays what it is, whatever is evicted and written. */
    uint8_t *own = (uint8_t *)syscall(SYS_mmap, map, MIB, (long)RW, (long)(MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED), -1L, 0L);
    CHECK(own == map);
    memset(own, 200, MIB);
    expect_in_file(path, 5 * PAGE, 7);
    for (size_t i = 3 * MIB; i < 7 * MIB; i += PAGE) CHECK(map[i] == 7);
    for (size_t i = 0; i < MIB; i++) CHECK(own[i] == 200);
    CHECK(syscall(SYS_munmap, map, SIZE) == 0 && is_gone(map + 4 * MIB, 7));
    expect_in_file(path, 4 * MIB, 7);
    CHECK(syscall(SYS_ftruncate, fd, 0L) == 0);
}

/* A program that closes all that it sees. */
static void descriptors(const char *path) {
    map = map_all(file_of(path, SIZE));
    for (int round = 0; round < 2; round++) {
        for (long other = 3; other < 5000; other++) syscall(SYS_close, other);
        CHECK(syscall(SYS_close_range, 3L, ~0U, 0L) == 0);
        for (long other = 3; other < 5000; other++) {
            syscall(SYS_dup2, 2L, other);
            syscall(SYS_dup3, 2L, other, (long)O_CLOEXEC);
        }
        expect(map, 0, SIZE);
        for (size_t i = 0; i < SIZE; i += PAGE) map[i + 7] = (uint8_t)(round + 90);
        CHECK(msync(map, SIZE, MS_SYNC) == 0);
        expect_in_file(path, 3 * MIB + 7, (uint8_t)(round + 90));
        for (size_t i = 0; i < SIZE; i += PAGE) map[i + 7] = pattern(i + 7);
    }
}

static void dirty(uint8_t salt) {
    for (size_t i = 0; i < SIZE; i += PAGE) map[i] = (uint8_t)(i / PAGE + salt);
}

static int is_dirty(uint8_t salt) {
    for (size_t i = 0; i < SIZE; i += PAGE)
        if (map[i] != (uint8_t)(i / PAGE + salt)) return 0;
    return 1;
}

static long make(int how) {
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    switch (how) {
    case 0: return syscall(SYS_fork);
    case 1: return syscall(SYS_vfork);
    case 2: return syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    case 3: return syscall(SYS_clone, (long)(CLONE_VM | CLONE_VFORK | SIGCHLD), 0L, 0L, 0L, 0L);
    case 4: return syscall(SYS_clone3, &arguments, sizeof arguments);
    default: arguments.flags = CLONE_VM | CLONE_VFORK; return syscall(SYS_clone3, &arguments, sizeof arguments);
    }
}

/* A child has the maps as they were: it looks at all of them, which it can do past the C library only if they are there. On
 * the kernel those that share this stack as well are left out: there, nothing is left of the way back. */
static void children(const char *path) {
    map = map_all(file_of(path, SIZE));
    int served = getenv("LD_PRELOAD") != NULL;
    for (int how = 0; how < 6; how++) {
        if (!served && how % 2 == 1) continue;
        uint8_t salt = (uint8_t)(how * 3 + 1);
        dirty(salt);
        long child = make(how);
        CHECK(child >= 0);
        if (child == 0) {
            if (!is_dirty(salt)) _exit(1);
            map[2 * PAGE + 1] = salt;
            syscall(SYS_exit_group, 40L + how);
        }
        int status;
        CHECK(waitpid((pid_t)child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 40 + how);
        CHECK(is_dirty(salt));
        expect_in_file(path, 2 * PAGE + 1, salt);
    }
    /* One that shares the memory, with a stack of its own, has nothing to come back to but a function: by name. Threads as well. */
    CHECK(syscall(SYS_clone, (long)(CLONE_THREAD | SIGCHLD), 0L, 0L, 0L, 0L) == -1 && errno == EINVAL);
}

/* What comes after this program reads what it stored. */
static void programs(const char *path) {
    CHECK(close(file_of(path, SIZE)) == 0);
    char copy[512];
    snprintf(copy, sizeof copy, "%s.copy", path);
    for (int how = 0; how < 2; how++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            map = map_all(open(path, O_RDWR));
            dirty((uint8_t)(how + 6));
            char *const arguments[] = {"cp", (char *)path, copy, NULL};
            if (how == 0) syscall(SYS_execve, "/bin/cp", arguments, environ);
            else syscall(SYS_execveat, (long)AT_FDCWD, "/bin/cp", arguments, environ, 0L);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        int fd = open(copy, O_RDONLY);
        uint8_t byte;
        for (size_t i = 0; i < SIZE; i += PAGE)
            CHECK(pread(fd, &byte, 1, (off_t)i) == 1 && byte == (uint8_t)(i / PAGE + how + 6));
        CHECK(close(fd) == 0);
    }
    map = map_all(open(path, O_RDWR));
    CHECK(is_dirty(7));
}

struct kernel_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static void signals(const char *path) {
    const unsigned long bus = 1ul << (SIGBUS - 1);
    /* Where a handler returns to: the C library's. */
    struct sigaction plain = {.sa_sigaction = jump_out, .sa_flags = SA_SIGINFO};
    struct kernel_action action, now, before;
    CHECK(sigaction(SIGUSR2, &plain, NULL) == 0 && syscall(SYS_rt_sigaction, SIGUSR2, NULL, &action, 8L) == 0);
    CHECK(action.handler == jump_out && action.restorer);
    map = map_all(file_of(path, 4 * MIB));
    expect(map, 0, 4 * MIB);
    for (int round = 0; round < 3; round++) {
        action.mask = round ? bus : 0;
        CHECK(syscall(SYS_rt_sigaction, SIGBUS, &action, &before, 8L) == 0 && syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8L) == 0);
        CHECK(round ? before.handler == jump_out : before.handler == (void *)SIG_DFL);
        expect(map, 0, 4 * MIB);
        CHECK(raised_by_load(map + 5 * MIB) == SIGBUS && caught_address == map + 5 * MIB);
        CHECK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &now, 8L) == 0 && now.mask == action.mask && now.handler == jump_out);
        CHECK(syscall(SYS_rt_sigaction, SIGBUS, NULL, &now, 8L) == 0 && now.handler == jump_out && !(now.flags & SA_NODEFER));
    }
    unsigned long all = ~0ul, old;
    CHECK(syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, &all, NULL, 8L) == 0);
    expect(map, 0, 4 * MIB);
    CHECK(syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, NULL, &old, 8L) == 0 && old & bus);
    CHECK(syscall(SYS_rt_sigprocmask, (long)SIG_UNBLOCK, &bus, &old, 8L) == 0 && old & bus);
    CHECK(syscall(SYS_rt_sigprocmask, (long)SIG_BLOCK, NULL, &old, 8L) == 0 && !(old & bus) && old & 1ul << 31);
    FAILS(syscall(SYS_rt_sigaction, SIGBUS, &action, NULL, 4L), EINVAL);
    FAILS(syscall(SYS_rt_sigprocmask, (long)SIG_BLOCK, &all, NULL, 4L), EINVAL);
    FAILS(syscall(SYS_rt_sigaction, 65L, &action, NULL, 8L), EINVAL);
}

/* Requests of an io_uring whose memory is a mapping, made before and after the ring. */
static void rings(const char *path) {
    int fd = file_of(path, SIZE), source = open("/proc/self/exe", O_RDONLY);
    map = map_all(fd);
    map[3 * MIB] = 200;
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4L, &params);
    if (ring < 0) {
        fprintf(stderr, "no io_uring here: %s\n", strerror(errno));
        return;
    }
    uint8_t *entries = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(unsigned), RW, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    uint8_t *results = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), RW, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *calls = mmap(NULL, params.sq_entries * sizeof *calls, RW, MAP_SHARED, ring, IORING_OFF_SQES);
    CHECK(entries != MAP_FAILED && results != MAP_FAILED && calls != MAP_FAILED);
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    int later = file_of(other, SIZE);
    for (unsigned call = 0; call < 2; call++) {
        uint8_t *to = call == 0 ? map : map_all(later);
        calls[call] = (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = source, .addr = (uint64_t)(to + MIB), .len = PAGE};
        ((unsigned *)(entries + params.sq_off.array))[call] = call;
        __atomic_store_n((unsigned *)(entries + params.sq_off.tail), call + 1, __ATOMIC_RELEASE);
        CHECK(syscall(SYS_io_uring_enter, ring, 1L, 1L, (long)IORING_ENTER_GETEVENTS, NULL, 0L) == 1);
        CHECK(((struct io_uring_cqe *)(results + params.cq_off.cqes))[call].res == (int)PAGE);
        __atomic_store_n((unsigned *)(results + params.cq_off.head), call + 1, __ATOMIC_RELEASE);
        uint8_t byte;
        CHECK(!memcmp(to + MIB, "\177ELF", 4) && pread(call == 0 ? fd : later, &byte, 1, MIB + 1) == 1 && byte == 'E');
    }
    CHECK(map[3 * MIB] == 200 && close(ring) == 0 && unlink(other) == 0);
}

/* Buffers of an io_uring that lie in a mapping: the kernel keeps their pages, and stores go both ways. */
static void registered(const char *path) {
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4L, &params);
    if (ring < 0) {
        fprintf(stderr, "no io_uring here: %s\n", strerror(errno));
        return;
    }
    int fd = file_of(path, SIZE);
    map = map_all(fd);
    map[3 * MIB] = 200;
    struct iovec buffers[2] = {{map, MIB}, {map + 3 * MIB, MIB}};
    if (syscall(SYS_io_uring_register, ring, 0L, buffers, 2L) != 0) {
        /* Linux 6.5 and later: not of a file system that is to know which pages are dirty. */
        CHECK(errno == EFAULT && map[3 * MIB] == 200);
        expect(map, 0, 3 * MIB);
        return;
    }
    FAILS(syscall(SYS_io_uring_register, ring, 0L, NULL, 2L), EBUSY);
    uint8_t *entries = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(unsigned), RW, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *calls = mmap(NULL, params.sq_entries * sizeof *calls, RW, MAP_SHARED, ring, IORING_OFF_SQES);
    CHECK(entries != MAP_FAILED && calls != MAP_FAILED);
    int source = open("/proc/self/exe", O_RDONLY);
    /* The first bytes of this program into the second buffer, by the kernel. */
    calls[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = source, .addr = (uint64_t)(map + 3 * MIB), .len = PAGE, .buf_index = 1};
    ((unsigned *)(entries + params.sq_off.array))[0] = 0;
    __atomic_store_n((unsigned *)(entries + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1L, 1L, (long)IORING_ENTER_GETEVENTS, NULL, 0L) == 1);
    CHECK(!memcmp(map + 3 * MIB, "\177ELF", 4) && close(ring) == 0);
    expect(map, 0, 3 * MIB);
    uint8_t byte;
    CHECK(pread(fd, &byte, 1, 3 * MIB + 1) == 1 && byte == 'E');
}

/* A guest without an operating system, whose memory is the mapping: it adds 1 to a byte of each page of a segment, and halts. */
static void guest(const char *path) {
    int kvm = open("/dev/kvm", O_RDWR), machine = kvm < 0 ? -1 : ioctl(kvm, KVM_CREATE_VM, 0);
    if (machine < 0) {
        fprintf(stderr, "no guest: /dev/kvm: %s\n", strerror(errno));
        return;
    }
    map = map_all(file_of(path, SIZE));
    const unsigned char code[] = {0x31, 0xff, 0x26, 0xfe, 0x05, 0x81, 0xc7, 0x00, 0x10, 0x75, 0xf7, 0xf4, 0xeb, 0xf2};
    memcpy(map, code, sizeof code);
    struct kvm_userspace_memory_region memory = {.memory_size = SIZE, .userspace_addr = (uint64_t)map};
    CHECK(ioctl(machine, KVM_SET_USER_MEMORY_REGION, &memory) == 0);
    int processor = ioctl(machine, KVM_CREATE_VCPU, 0), size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
    CHECK(processor >= 0 && size > 0);
    struct kvm_run *run = mmap(NULL, (size_t)size, RW, MAP_SHARED, processor, 0);
    CHECK(run != MAP_FAILED);
    struct kvm_sregs segments;
    CHECK(ioctl(processor, KVM_GET_SREGS, &segments) == 0);
    segments.cs.base = 0;
    segments.cs.selector = 0;
    for (size_t segment = MIB; segment < SIZE; segment += 16 * PAGE) {
        struct kvm_regs registers = {.rflags = 2};
        segments.es.base = segment;
        CHECK(ioctl(processor, KVM_SET_SREGS, &segments) == 0 && ioctl(processor, KVM_SET_REGS, &registers) == 0);
        CHECK(ioctl(processor, KVM_RUN, 0) == 0 && run->exit_reason == KVM_EXIT_HLT);
    }
    for (size_t i = MIB; i < SIZE; i += PAGE) CHECK(map[i] == (uint8_t)(pattern(i) + 1));
    CHECK(munmap(map, SIZE) == 0);
    uint8_t byte;
    CHECK(pread(open(path, O_RDONLY), &byte, 1, MIB) == 1 && byte == (uint8_t)(pattern(MIB) + 1));
}

static const struct test tests[] = {
    {"maps", maps}, {"descriptors", descriptors}, {"children", children}, {"programs", programs}, {"signals", signals},
    {"rings", rings}, {"registered", registered}, {"guest", guest},
};
RUN_ONE_OF(tests)
