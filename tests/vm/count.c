/* Runs a program in single steps from each first to each second of its SIGURGs, and looks at what it executes there in user
 * space. The value that comes with the first is the address of a page. Told are, for a pair on average:
 *
 *   instructions   all of them
 *   calls          system calls, but for the one that sends the second signal
 *   lines          cache lines of that page that were written back (CLWB, CLFLUSHOPT, CLFLUSH), each once, a fence behind them
 *   strays         cache lines outside, and those written back twice
 *
 *   count PROGRAM ARGUMENT…
 *
 * It knows of no counter of the program's, so it can tell whether these are true. Prints `fact flush_NAME VALUE`. Only the
 * first thread is looked at.
 */
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LINE = 64 };

static long instructions, calls, lines, strays, pairs;
static uintptr_t page;
/* Lines of the page that were written back, a bit each; those with a fence behind. */
static uint64_t written, fenced;

/* Where the operand of an instruction is whose ModRM byte is the lowest of `code`. */
static uintptr_t operand(const struct user_regs_struct *r, uint64_t code, int high) {
    const unsigned long long registers[] = {r->rax, r->rcx, r->rdx, r->rbx, r->rsp, r->rbp, r->rsi, r->rdi,
                                            r->r8,  r->r9,  r->r10, r->r11, r->r12, r->r13, r->r14, r->r15};
    unsigned mode = code >> 6 & 3, base = code & 7;
    if (base == 4 || (mode == 0 && base == 5))
        errx(1, "a cache line is addressed in a way unknown here: ModRM %#lx", code & 0xff);
    int32_t displacement = mode == 0 ? 0 : mode == 1 ? (int8_t)(code >> 8) : (int32_t)(code >> 8);
    return registers[base + 8 * high] + displacement;
}

static void write_back(uintptr_t address) {
    uint64_t line = (uint64_t)1 << (address % PAGE / LINE);
    if (address / PAGE != page / PAGE || written & line)
        strays++;
    else
        written |= line;
}

/* Looks at the instruction that comes next. */
static void look(pid_t program) {
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, program, 0, &registers) != 0)
        err(1, "PTRACE_GETREGS");
    /* Eight bytes: enough for prefixes, 0F AE, ModRM and a displacement that a line would have. */
    uint64_t code = ptrace(PTRACE_PEEKTEXT, program, registers.rip, 0);
    instructions++;
    calls += (code & 0xffff) == 0x050f;
    int wide = (code & 0xff) == 0x66;
    code >>= wide ? 8 : 0;
    int high = (code & 0xf1) == 0x41;
    code >>= (code & 0xf0) == 0x40 ? 8 : 0;
    if ((code & 0xffff) != 0xae0f)
        return;
    code >>= 16;
    unsigned operation = code >> 3 & 7, is_memory = (code >> 6 & 3) != 3;
    /* 66 0F AE /6 CLWB, 66 0F AE /7 CLFLUSHOPT, 0F AE /7 CLFLUSH; without memory 0F AE /7 SFENCE, /6 MFENCE. */
    if (is_memory && (operation == 7 || (wide && operation == 6)))
        write_back(operand(&registers, code, high));
    else if (!is_memory && operation >= 6)
        fenced = written;
}

int main(int argc, char **argv) {
    if (argc < 2)
        errx(2, "usage: count PROGRAM ARGUMENT...");
    pid_t program = fork();
    if (program == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execvp(argv[1], argv + 1);
        err(1, "%s", argv[1]);
    }
    int status, stepping = 0;
    while (waitpid(program, &status, 0) == program && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        if (signal == SIGURG) {
            siginfo_t info;
            if (ptrace(PTRACE_GETSIGINFO, program, 0, &info) != 0)
                err(1, "PTRACE_GETSIGINFO");
            lines += __builtin_popcountll(fenced);
            page = (uintptr_t)info.si_value.sival_ptr;
            written = fenced = 0;
            pairs += stepping;
            stepping = !stepping;
            signal = 0;
        } else if (stepping && signal == 0) {
            look(program);
        }
        if (ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, program, 0, signal) != 0 && errno != ESRCH)
            err(1, "ptrace");
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || pairs == 0)
        errx(1, "%s: status %#x after %ld pairs of marks", argv[1], status, pairs);
    printf("fact flush_instructions %ld\nfact flush_calls %ld\n", instructions / pairs, calls / pairs - 1);
    printf("fact flush_lines %ld\nfact flush_strays %ld\n", lines / pairs, strays);
    return 0;
}
