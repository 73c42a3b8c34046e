# Kyoto Cabinet's own tests of its file hash and file tree: writable mappings as large as the file may grow, locks on the
# whole file, transactions, threads. Each test checks what it reads; check and list do it again in plain processes.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(kchashtest kctreetest kchashmgr kctreemgr)
packages=(kyotocabinet-utils)

work() {
    export KCRNDSEED=9
    local mapped=(-msiz $((64 << 20))) file
    serve 20 --map '*.kch'
    under kchashtest order -rnd -apow 10 -bnum 20000 "${mapped[@]}" order.kch 20000 >&2
    serve 8 --map '*.kch'
    under kchashtest wicked -th 3 -it 2 -apow 10 -bnum 20000 "${mapped[@]}" wicked.kch 10000 >&2
    under kchashtest tran -th 2 -apow 10 -bnum 20000 "${mapped[@]}" tran.kch 4000 >&2
    serve 8 --map '*.kct'
    under kctreetest order -set -psiz 8192 -pccap 1000000 "${mapped[@]}" order.kct 300000 >&2
    under kctreetest order -get -psiz 8192 -pccap 1000000 "${mapped[@]}" order.kct 300000 >&2
    under kctreetest wicked -th 3 -it 2 -psiz 4000 -pccap 500000 -apow 11 "${mapped[@]}" wicked.kct 20000 >&2
    # With threads, what is left in the end depends on who came first; that it is whole does not.
    for file in order wicked tran; do kchashmgr check $file.kch >&2 && echo "$file.kch is whole"; done
    for file in order wicked; do kctreemgr check $file.kct >&2 && echo "$file.kct is whole"; done
    kchashmgr list -pv order.kch | digest
    kctreemgr list -pv order.kct | digest
}
