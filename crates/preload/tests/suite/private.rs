//! Private mappings that are only read (`MAP_PRIVATE`) are the engine's, and change hands, as shared ones are; nothing that is stored
//! to one is the file's.

cases! {
    "private.c", &[];
    reads stores stores_to_a_part private_pages no_private_pages children parts_go beside_shared calls beside_shared_parts walk;
    kernel
}
