# A Java program that maps windows of a file with FileChannel.map and stores from several threads: the JVM brings signal
# handlers of its own for SIGSEGV and SIGBUS, and faults in compiled code. force, load, isLoaded, copies by transferTo and
# by writing from and reading into the mappings; the file is read back by a plain process.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(java javac)
packages=(default-jdk-headless)

work() {
    javac -d . "$here/Windows.java"
    serve 40 --map 'windows*'
    returns 1 # `windows` is mapped to be written, and the same bytes to be read
    under java -Xmx64m -cp . Windows windows
    digest windows windows.*
}
