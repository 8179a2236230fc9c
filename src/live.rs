//! A value that one place publishes and many read, without a lock.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// The only writer.
#[derive(Debug)]
pub struct Publisher<T>(Arc<ArcSwap<T>>);

/// A reader; as many as are wanted.
#[derive(Debug)]
pub struct Reader<T>(Arc<ArcSwap<T>>);

#[must_use]
pub fn pair<T>(initial: T) -> (Publisher<T>, Reader<T>) {
    let value = Arc::new(ArcSwap::from_pointee(initial));
    (Publisher(value.clone()), Reader(value))
}

impl<T> Publisher<T> {
    /// One pointer store. Who has loaded the old value keeps it for as long as it wants.
    pub fn publish(&self, value: impl Into<Arc<T>>) {
        self.0.store(value.into());
    }
}

impl<T> Reader<T> {
    #[must_use]
    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_what_it_loaded_while_the_next_one_sees_what_was_published() {
        let (publisher, reader) = pair(1);
        let loaded = reader.load();
        publisher.publish(2);
        assert_eq!((*loaded, *reader.clone().load()), (1, 2));
    }
}
