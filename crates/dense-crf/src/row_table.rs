//! Numbers the lattice vertices that a tile touches in the order of first occurrence: a hash table with open
//! addressing, key and number adjacent, small enough for the second-level cache.

const EMPTY: Slot = Slot { key: u64::MAX, row: 0 };

/// 2⁶⁴ divided by the golden ratio: multiplying by it spreads neighbouring keys over the table (Fibonacci hashing).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

pub(crate) struct RowTable {
    /// A power of two; at most half are occupied.
    slots: Vec<Slot>,
    shift: u32,
    len: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    key: u64,
    row: u32,
}

impl RowTable {
    pub(crate) fn new() -> Self {
        let bits = 12;
        Self { slots: vec![EMPTY; 1 << bits], shift: 64 - bits, len: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.len = 0;
    }

    /// The row of a vertex and whether it is new.
    pub(crate) fn insert(&mut self, key: u64) -> (u32, bool) {
        let at = self.probe(key);
        if self.slots[at].key == key {
            return (self.slots[at].row, false);
        }
        let row = self.len;
        self.slots[at] = Slot { key, row };
        self.len += 1;
        if 2 * self.len as usize > self.slots.len() {
            self.grow();
        }
        (row, true)
    }

    /// The slot that holds the key, or the empty one where it belongs.
    fn probe(&self, key: u64) -> usize {
        let mut at = (key.wrapping_mul(SPREAD) >> self.shift) as usize;
        while self.slots[at].key != key && self.slots[at].key != EMPTY.key {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    fn grow(&mut self) {
        self.shift -= 1;
        let larger = vec![EMPTY; 2 * self.slots.len()];
        let old = std::mem::replace(&mut self.slots, larger);
        for slot in old.into_iter().filter(|slot| slot.key != EMPTY.key) {
            let at = self.probe(slot.key);
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_numbered_in_order_of_first_sight() {
        let mut table = RowTable::new();
        for round in 0..2 {
            for key in (0..9000).rev() {
                assert_eq!(table.insert(key), (8999 - key as u32, true), "round {round}");
            }
            assert_eq!(table.insert(17), (8982, false));
            table.clear();
        }
    }
}
