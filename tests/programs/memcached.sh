# memcached with its items in a memory file (-e): values received from sockets into the mapping and sent from it, by two
# threads, and all of them still there after it was told to stop (SIGUSR1) and started again on the same file.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(memcached)
packages=(memcached)

work() {
    # Its file is as large as -m says. Few slab classes (-f), each of which takes its part, leave room for all values.
    serve 48 --map 'items'
    serve_items fill
    sleep 1.1 # a restart within the second in which it stopped counts as a clock set back
    serve_items check
}

# A memcached on the file, the client's word about it, and its end.
serve_items() {
    start memcached -u "$(id -un)" -s "$PWD/socket" -m 48 -f 2 -e items -t 2 >&2
    python3 "$here/memcached_client.py" socket "$1" || { kill "$pid" || true; return 1; }
    kill -USR1 "$pid"
    wait "$pid"
    rm -f socket
}
