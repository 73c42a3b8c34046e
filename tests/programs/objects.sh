# Objects of a store as files (`fastmap run --object`), from a server on loopback with ranges and ETags: coreutils, grep, ripgrep, numpy and
# SQLite read them as they read local copies; programs and their children come and go, are killed, and so is the one that fetches.
# shellcheck shell=bash disable=SC2016,SC2034,SC2064,SC2154
commands=(python3 rg sqlite3)
packages=(python3 ripgrep sqlite3)
pypi=(numpy)

# A command that maps an object, or reads it, at a path; on the kernel, and steered, the file itself is there.
maps() {
    [[ $half == fastmap ]] || mkdir -p at
    [[ $half == fastmap ]] || ln -f "store/$1" at/
    serve 16 --object "$url/$1=at/$1" --tier tier --tier-limit 24MiB
    under "${@:2}"
}
reads() {
    [[ $half == fastmap ]] || mkdir -p at
    [[ $half == fastmap ]] || ln -f "store/$1" at/
    line=("${@:2}")
    [[ $half != fastmap ]] || line=("$FASTMAP" run --object "$url/$1=at/$1" --tier tier --tier-limit 24MiB -- "${@:2}")
    "${line[@]}"
}

work() {
    local url server
    mkdir store tmp
    export TMPDIR=$PWD/tmp
    python3 - <<'END'
import random
chance = random.Random(5)
words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
with open("store/text", "w") as text:
    text.writelines(" ".join(chance.choices(words, k=12)) + "\n" for _ in range(250000))
END
    "$PYTHON" -c 'import numpy; numpy.save("store/rows.npy", numpy.random.default_rng(1).random((140000, 16)))'
    sqlite3 store/base.db 'create table t(a integer primary key, b text);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 400000) insert into t select i, hex(i * 7919) from n;
        create index b on t(b)'
    python3 "$here/object_server.py" store >port &
    server=$!
    trap "kill $server" EXIT
    until [[ -s port ]]; do sleep 0.05; done
    url=http://127.0.0.1:$(<port)

    # The second time much of it is there.
    for _ in 1 2; do
        reads text sh -c 'cat at/text | md5sum; md5sum <at/text; md5sum at/text; wc at/text; head -c 1000000 at/text | md5sum; tail -c 1000000 at/text | md5sum'
        reads text sh -c 'tail -n 3 at/text; dd if=at/text bs=3000 skip=1000 count=100 status=none | md5sum; od -An -tx1 -j 12345678 -N 32 at/text'
        reads text sh -c 'cp at/text copy && cmp at/text copy && cmp store/text copy && rm -f copy; sort at/text | md5sum; sort <at/text | md5sum'
        reads text sh -c 'grep -c tea at/text; grep -n "th[a-z]*t$" at/text | md5sum; sed -n 5000,5005p at/text; stat -c "%s %F" at/text'
        reads text rg --no-mmap -nb 'tea\w' at/text | digest
        maps text rg --mmap -nb 'tea\w' at/text | digest
        maps text rg --mmap -c '(on|in)\S+ s\w+d$' at/text
        maps rows.npy "$PYTHON" "$here/object_arrays.py" at/rows.npy
        reads base.db sqlite3 'file:at/base.db?immutable=1' 'select count(*), sum(length(b)) from t; select a from t where b > "3" order by b limit 3; pragma integrity_check'
        maps base.db sqlite3 -readonly at/base.db 'pragma mmap_size = 268435456; select sum(a) from t where b < "5"; select count(*) from t where b like "%7%"'
    done
    if [[ $half == fastmap ]]; then lives 1>&2; fi
}

# Waits until no server is left, and no folder of one.
gone() {
    for _ in {1..100}; do
        [[ -n $(ls tmp) ]] || return 0
        sleep 0.1
    done
    echo "there is still $(ls tmp)"
    return 1
}

# The process that fetches for the programs of this test.
fetcher() {
    local process
    for process in /proc/[0-9]*; do
        if [[ $(cat "$process/comm" 2>/dev/null) == fastmap-objects ]] && grep -qz "^TMPDIR=$TMPDIR$" "$process/environ" 2>/dev/null; then
            echo "${process#/proc/}"
        fi
    done
}

# What becomes of processes.
lives() {
    local status=0
    gone
    reads text sh -c '! (echo x >>at/text) 2>/dev/null && ! rm -f at/text 2>/dev/null && ! mv at/text b 2>/dev/null && ! chmod u+w at/text 2>/dev/null && test -r at/text'
    # The program is killed.
    reads text sh -c 'head -c 10 at/text; kill -9 $$' || status=$?
    ((status == 137))
    gone
    # A child goes on when the program has ended, and so does the program that it becomes.
    reads text sh -c '(sleep 2.5; exec md5sum at/text >late) >/dev/null 2>&1 &'
    sleep 1.5
    [[ -n $(ls tmp) ]]
    until [[ -s late ]]; do sleep 0.1; done
    cmp <(md5sum <store/text | cut -d' ' -f1) <(cut -d' ' -f1 late)
    gone
    # The one that fetches is killed: what is not there cannot be read, and nobody waits for it.
    rm -rf tier
    export -f fetcher
    reads text bash -c 'head -c 10 at/text; kill -9 $(fetcher); ! cat at/text >part 2>why'
    grep -q 'endpoint shutdown' why
    cmp -n "$(stat -c %s part)" part store/text
    rm -rf tmp/*
}
