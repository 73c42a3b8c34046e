# fio's mmap engine, random writes of four jobs: every block carries a CRC, which fio checks through the mapping and then
# once more with plain reads in another process. With jobs as threads of one process, and as processes of their own, whose
# blocks lie across page borders.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(fio)
packages=(fio)

work() {
    local jobs how job
    serve 40 --map 'fio-*'
    returns 8 # each job maps its file to write it, and once more to verify it
    for jobs in threads processes; do
        how=(--thread --bs=4k --fsync=512)
        [[ $jobs == threads ]] || how=(--bs=5k)
        job=(--name="fio-$jobs" --rw=randwrite --size=10m --numjobs=4 "${how[@]}" --verify=crc32c --randseed=7
            --verify_state_save=0 --verify_fatal=1 --group_reporting --output-format=json)
        under fio "${job[@]}" --ioengine=mmap --do_verify=1 --output=mapped
        fio "${job[@]}" --ioengine=psync --verify_only --output=plain
        python3 - mapped plain <<'END'
import json, sys
for name in sys.argv[1:]:
    for job in json.load(open(name))["jobs"]:
        print(job["jobname"], name, "written", job["write"]["total_ios"], "verified", job["read"]["total_ios"], "error", job["error"])
END
    done
}
