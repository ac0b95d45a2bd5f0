//! Values that are costly to make, made once and shared.
//!
//! Each key has a slot with a lock of its own: the first caller makes the value while others
//! who want the same one wait, and those who want another one do not. A failure is not kept, so
//! the next one tries again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bounded cache; the entry that was not wanted for longest goes first.
pub(super) struct Cache<K, V> {
    capacity: usize,
    /// Most recently wanted last. A handful of entries needs no better index.
    slots: Mutex<Vec<(K, Slot<V>)>>,
}

type Slot<V> = Arc<Mutex<Option<Arc<V>>>>;

impl<K: PartialEq, V> Cache<K, V> {
    pub(super) const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            slots: Mutex::new(Vec::new()),
        }
    }

    /// Returns the value of `key`, making it if there is none.
    pub(super) fn get_or_make<E>(
        &self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        let slot = self.slot(key);
        let mut value = lock(&slot);
        if let Some(value) = &*value {
            return Ok(Arc::clone(value));
        }
        Ok(Arc::clone(value.insert(Arc::new(make()?))))
    }

    fn slot(&self, key: K) -> Slot<V> {
        let mut slots = lock(&self.slots);
        let entry = match slots.iter().position(|(other, _)| *other == key) {
            Some(at) => slots.remove(at),
            None => (key, Slot::default()),
        };
        let slot = Arc::clone(&entry.1);
        slots.push(entry);
        if slots.len() > self.capacity {
            slots.remove(0);
        }
        slot
    }
}

/// Locks even after another thread panicked: what is inside is a whole value or none.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn threads_that_race_for_a_value_make_it_once() {
        const THREADS: usize = 64;
        let cache: Cache<&str, usize> = Cache::new(32);
        let (made, start) = (AtomicUsize::new(0), Barrier::new(THREADS));
        let values: Vec<Arc<usize>> = std::thread::scope(|scope| {
            let wanted = (0..THREADS).map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let make = || Ok::<_, ()>(made.fetch_add(1, Ordering::SeqCst));
                    cache.get_or_make("tokenizer", make).unwrap()
                })
            });
            let wanted: Vec<_> = wanted.collect();
            wanted
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(made.load(Ordering::SeqCst), 1);
        assert!(values.iter().all(|value| Arc::ptr_eq(value, &values[0])));
    }

    #[test]
    fn a_failure_is_forgotten_and_a_panic_too() {
        let cache: Cache<&str, u32> = Cache::new(32);
        assert_eq!(cache.get_or_make("x", || Err("absent")), Err("absent"));
        std::thread::scope(|scope| {
            let panics = || cache.get_or_make("x", || -> Result<u32, ()> { panic!("on purpose") });
            scope.spawn(panics).join().unwrap_err();
        });
        assert_eq!(cache.get_or_make("x", || Ok::<_, ()>(7)).as_deref(), Ok(&7));
    }

    #[test]
    fn the_entry_not_wanted_for_longest_makes_room() {
        let cache: Cache<u32, u32> = Cache::new(3);
        let made = AtomicUsize::new(0);
        let get = |key: u32| {
            let before = made.load(Ordering::SeqCst);
            let make = || {
                made.fetch_add(1, Ordering::SeqCst);
                Ok::<_, ()>(key)
            };
            assert_eq!(*cache.get_or_make(key, make).unwrap(), key);
            made.load(Ordering::SeqCst) > before
        };
        assert!(get(1) && get(2) && get(3), "new");
        assert!(!get(1), "kept");
        assert!(get(4), "new");
        assert!(!get(1) && !get(3), "wanted since");
        assert!(get(2), "made room for 4");
    }

    #[test]
    fn making_one_value_does_not_hold_up_another() {
        let cache: Cache<&str, u32> = Cache::new(32);
        let slow = cache.get_or_make("slow", || {
            let fast = cache.get_or_make("fast", || Ok::<_, ()>(1))?;
            Ok::<_, ()>(*fast + 1)
        });
        assert_eq!(slow.as_deref(), Ok(&2));
    }
}
