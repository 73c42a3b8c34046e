//! `libfastmap_steer.so`.
