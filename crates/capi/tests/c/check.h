/* Checks that are counted, each with its line, and calls that are to fail as the library's do. */
static int checked, failed;

static void check_at(int line, int fine, const char *what) {
    checked++;
    if (!fine) {
        failed++;
        printf("line %d: %s (errno %d, %s; \"%s\")\n", line, what, errno, strerror(errno), fm_last_error());
    }
}
#define CHECK(what) check_at(__LINE__, !!(what), #what)
#define FAILS(call, error) (errno = 0, (call) == -1 && errno == (error) && *fm_last_error() != '\0')
