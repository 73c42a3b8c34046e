//! What a watcher may do.

/// Permissions of a watcher.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Advice of the program's own that is plainly wrong may be replaced.
    pub overrides: bool,
    /// Only loads from slow storage are helped.
    pub only_loads: bool,
    /// A dry run: nothing is done, and the report says what would be.
    pub is_dry: bool,
    /// The processes descend from the calling one.
    pub descends: bool,
}
