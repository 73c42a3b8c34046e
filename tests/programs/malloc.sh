# A C++ program that lives on malloc, with its heap on a file: strings, maps, vectors that grow, several threads that free
# what others allocated, every call of the family, and system calls that read and write heap memory. It checks itself.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(g++)
packages=(g++)

work() {
    g++ -O2 -std=c++17 -pthread -o heap_user "$here/heap_user.cpp"
    serve 80 --heap "$PWD/heap:512MiB"
    watched ./heap_user
}
