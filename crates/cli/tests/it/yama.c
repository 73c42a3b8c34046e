// A stand-in for Yama, which not every kernel has: as under kernel.yama.ptrace_scope 1, only an ancestor may begin to trace a process. Preloaded
// into the tracer.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <unistd.h>

static int is_ancestor_of(int pid) {
    while (pid > 0 && pid != getpid()) {
        char path[64], line[256];
        snprintf(path, sizeof path, "/proc/%d/status", pid);
        FILE *file = fopen(path, "r");
        pid = 0;
        while (file && fgets(line, sizeof line, file)) sscanf(line, "PPid: %d", &pid);
        if (file) fclose(file);
    }
    return pid > 0;
}

long ptrace(enum __ptrace_request request, ...) {
    va_list words;
    va_start(words, request);
    int pid = va_arg(words, int);
    void *address = va_arg(words, void *), *data = va_arg(words, void *);
    va_end(words);
    if ((request == PTRACE_SEIZE || request == PTRACE_ATTACH) && !is_ancestor_of(pid)) {
        errno = EPERM;
        return -1;
    }
    long (*next)(enum __ptrace_request, int, void *, void *) = dlsym(RTLD_NEXT, "ptrace");
    return next(request, pid, address, data);
}
