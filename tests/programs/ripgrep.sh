# ripgrep searching memory-mapped files with two threads, each file mapped and unmapped: the same lines and counts as by
# reading. Its runtime (Rust's) has handlers for SIGSEGV and SIGBUS on stacks of their own.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(rg)
packages=(ripgrep)

work() {
    local pattern
    mkdir texts
    python3 - <<'END'
import random
chance = random.Random(8)
words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
for number in range(6):
    with open(f"texts/{number}.txt", "w") as text:
        text.writelines(" ".join(chance.choices(words, k=12)) + "\n" for _ in range(90000))
END
    serve 36 --map 'texts/*'
    for pattern in 'shed\w' 'th[a-z]*t\b' '(on|in)\S+ s\w+d$'; do
        under rg --mmap -j2 -c --sort none "$pattern" texts | sort
        under rg --mmap -j1 -nb --sort path "$pattern" texts | tee mapped | digest
        rg --no-mmap -nb --sort path "$pattern" texts | cmp - mapped
    done
    under rg --mmap -j1 --multiline -c 'e\w+\n\w+e ' texts/3.txt
}
