# RocksDB reading its tables through mmap(2), by db_bench: random and sequential reads and seeks by several threads, and
# writes whose compactions read and replace mapped tables. A plain ldb lists all there is in the end.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(db_bench ldb)
packages=(rocksdb-tools)

work() {
    local common=(--db=db --num=90000 --value_size=700 --compression_type=none --mmap_read=1 --seed=4 --open_files=-1)
    serve 40 --map '*.sst'
    under db_bench "${common[@]}" --write_buffer_size=4000000 --benchmarks=fillrandom,compact >&2
    under db_bench "${common[@]}" --use_existing_db=1 --threads=2 --reads=15000 --verify_checksum=1 \
        --benchmarks=readrandom,readseq,readreverse,seekrandom >reads
    cat reads >&2
    grep -oE '^(read|seek)random|\([0-9]+ of [0-9]+ found\)' reads
    under db_bench "${common[@]}" --use_existing_db=1 --write_buffer_size=4000000 --benchmarks=overwrite,compact >&2
    ldb --db=db scan --hex | digest
}
