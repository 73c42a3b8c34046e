//! Private mappings that are only read (`MAP_PRIVATE`) change hands as shared ones do, and nothing that is stored to one is the file's.

cases! {
    "private.c", &[];
    beside_shared;
    kernel reads stores stores_to_a_part private_pages no_private_pages children parts_go calls
}
