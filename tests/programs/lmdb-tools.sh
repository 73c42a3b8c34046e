# LMDB's own tools build a B+ tree through a mapping larger than its file, which grows under it by write(2), read it all
# back, and copy it by handing the mapping itself to write(2). What they made is dumped once more by plain processes.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(mdb_load mdb_dump mdb_copy mdb_stat)
packages=(lmdb-utils)

work() {
    local step
    mkdir tree copy compact
    python3 - >text <<'END'
import random
chance = random.Random(5)
print("VERSION=3\nformat=print\ntype=btree\nmapsize=268435456\nmaxreaders=126\nHEADER=END")
for key in chance.sample(range(10**9), 40000):
    print(f" key{key:09}\n {key}{'abcdefghij'[key % 10] * (9000 if key % 50 == 0 else chance.choice((300, 600, 900)))}")
print("DATA=END")
END
    serve 48 --map '*/data.mdb'
    under mdb_load -f text tree
    under mdb_stat -ef tree
    under mdb_dump -f dumped tree
    under mdb_copy tree copy
    under mdb_copy -c tree compact
    digest dumped
    for step in tree copy compact; do mdb_dump $step | digest; done
}
