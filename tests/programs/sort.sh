# GNU sort with its memory on the heap file: large blocks from malloc and realloc that read(2) fills and threads sort.
# The result is what it is without.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(sort)
packages=(coreutils)

work() {
    # Many lines, enough for sort's threads, that are nearly in order: else each comparison reads a page or two. And fewer,
    # long ones in no order.
    python3 - <<'END'
import random
chance = random.Random(6)
with open("many", "w") as many:
    for _ in range(8):
        keys = sorted(chance.getrandbits(96) for _ in range(20000))
        for at in range(0, len(keys), 50):
            many.writelines(f"{key:x} {chance.getrandbits(32):x}\n" for key in chance.sample(keys[at : at + 50], 50))
with open("long", "w") as long:
    long.writelines(f"{chance.getrandbits(99)} {chance.randrange(99)} {'x' * chance.randrange(1200)}\n" for _ in range(12000))
END
    export LC_ALL=C
    serve 16 --heap "$PWD/heap:256MiB"
    under sort --parallel=2 -S 24M -T . many -o sorted
    under sort --parallel=2 -S 24M -T . -k 2,2n -k 1,1r long | digest
    digest sorted
    sort -c sorted
}
