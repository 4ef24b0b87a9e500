//! Numbers lattice vertices in the order in which they are first seen: a table addressed by the key itself where the box
//! of possible keys is small, else a hash table with open addressing, key and number side by side.

const EMPTY: u64 = u64::MAX;

/// 2⁶⁴ divided by the golden ratio: multiplying by it spreads neighbouring keys over the table (Fibonacci hashing).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

pub(crate) enum VertexTable {
    Addressed { numbers: Vec<u32>, len: u32 },
    Hashed { slots: Vec<Slot>, shift: u32, len: u32 },
}

#[derive(Clone, Copy)]
pub(crate) struct Slot {
    key: u64,
    number: u32,
}

const EMPTY_SLOT: Slot = Slot { key: EMPTY, number: 0 };

impl VertexTable {
    /// A table for about `expected` vertices with keys below `num_keys`.
    pub(crate) fn new(num_keys: u64, expected: usize) -> Self {
        if num_keys <= 4 * expected as u64 {
            Self::Addressed { numbers: vec![u32::MAX; num_keys as usize], len: 0 }
        } else {
            Self::hashed(expected)
        }
    }

    pub(crate) fn hashed(expected: usize) -> Self {
        let bits = (2 * expected).next_power_of_two().trailing_zeros().max(4);
        Self::Hashed { slots: vec![EMPTY_SLOT; 1 << bits], shift: 64 - bits, len: 0 }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Addressed { numbers, len } => {
                numbers.fill(u32::MAX);
                *len = 0;
            }
            Self::Hashed { slots, len, .. } => {
                slots.fill(EMPTY_SLOT);
                *len = 0;
            }
        }
    }

    /// The number of a vertex and whether it was new.
    pub(crate) fn insert(&mut self, key: u64) -> (u32, bool) {
        match self {
            Self::Addressed { numbers, len } => {
                let number = &mut numbers[key as usize];
                let new = *number == u32::MAX;
                if new {
                    *number = *len;
                    *len += 1;
                }
                (*number, new)
            }
            Self::Hashed { slots, shift, len } => {
                let at = probe(slots, *shift, key);
                if slots[at].key == key {
                    return (slots[at].number, false);
                }
                let number = *len;
                slots[at] = Slot { key, number };
                *len += 1;
                if 2 * *len as usize > slots.len() {
                    grow(slots, shift);
                }
                (number, true)
            }
        }
    }

    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        match self {
            Self::Addressed { numbers, .. } => {
                numbers.get(key as usize).copied().filter(|&number| number != u32::MAX)
            }
            Self::Hashed { slots, shift, .. } => {
                let slot = slots[probe(slots, *shift, key)];
                (slot.key == key).then_some(slot.number)
            }
        }
    }
}

/// The slot that holds the key, or the empty one where it belongs. At most half of the slots are taken.
fn probe(slots: &[Slot], shift: u32, key: u64) -> usize {
    let mut at = (key.wrapping_mul(SPREAD) >> shift) as usize;
    while slots[at].key != key && slots[at].key != EMPTY {
        at = (at + 1) & (slots.len() - 1);
    }
    at
}

fn grow(slots: &mut Vec<Slot>, shift: &mut u32) {
    *shift -= 1;
    let old = std::mem::replace(slots, vec![EMPTY_SLOT; 2 * slots.len()]);
    for slot in old.into_iter().filter(|slot| slot.key != EMPTY) {
        let at = probe(slots, *shift, slot.key);
        slots[at] = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_number_vertices_in_order_of_first_sight() {
        for mut table in [VertexTable::new(1000, 1000), VertexTable::hashed(1)] {
            for key in (0..900).rev() {
                assert_eq!(table.insert(key), (899 - key as u32, true));
            }
            assert_eq!(table.insert(17), (882, false));
            assert_eq!(table.find(899), Some(0));
            assert_eq!(table.find(950), None);
            table.clear();
            assert_eq!(table.find(899), None);
        }
    }
}
