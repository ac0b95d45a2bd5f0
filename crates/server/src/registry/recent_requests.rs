//! A memory of the newest entries, for telling a repeated request from a new one.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A map that forgets its oldest entries.
#[derive(Debug)]
pub(crate) struct RecentRequests<K, V> {
    capacity: usize,
    values: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Clone + Eq + Hash, V> RecentRequests<K, V> {
    /// Makes a map that holds this many entries.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            values: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Returns an entry that is still known.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    /// Forgets an entry.
    pub(crate) fn remove(&mut self, key: &K) {
        if self.values.remove(key).is_some() {
            self.order.retain(|known| known != key);
        }
    }

    /// Adds an entry, and returns the one that was forgotten for it.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        if self.values.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() <= self.capacity {
            return None;
        }
        let oldest = self.order.pop_front()?;
        let value = self.values.remove(&oldest)?;
        Some((oldest, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_goes_first() {
        let mut recent = RecentRequests::new(2);
        assert_eq!(recent.insert(1, 'a'), None);
        assert_eq!(recent.insert(2, 'b'), None);
        assert_eq!(recent.insert(1, 'A'), None);
        assert_eq!(recent.insert(3, 'c'), Some((1, 'A')));
        assert_eq!(recent.get(&1), None);
        assert_eq!(recent.get(&3), Some(&'c'));
    }
}
