//! A value that a room further down keeps with a pool or a region, which owns it and knows nothing of it.

use std::any::Any;
use std::sync::OnceLock;

/// One value of a type that its owner does not know, set once.
#[derive(Debug, Default)]
pub struct Attachment(OnceLock<Option<Box<dyn Any + Send + Sync>>>);

impl Attachment {
    /// Sets it, unless that was done; `None`: it cannot be had, for good.
    pub fn set_once<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Option<T>) {
        self.0.get_or_init(|| make().map(|value| Box::new(value) as Box<dyn Any + Send + Sync>));
    }

    /// The value. No lock: asked by fault handlers.
    #[inline]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get()?.as_ref()?.downcast_ref()
    }
}
