//! What a program reaches of its own memory by other ways than a load.

cases! {
    "peek.c", &[];
    vm_reads vm_writes vm_errors mem_reads mem_writes;
    kernel
}
