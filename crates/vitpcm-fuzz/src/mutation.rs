//! Mutations of an input: bits and bytes, slices, numbers as text or length fields, dictionary words, and splices of
//! two inputs.

use vitpcm_data::Random;

/// Longest input; parsers are not more interesting on longer ones, only slower.
pub(crate) const MAX_LENGTH: usize = 1 << 16;
/// Most mutations at once.
const MAX_CHANGES: usize = 8;

const BYTES: [u8; 12] = [0, 1, 0x10, 0x20, 0x7f, 0x80, 0xfe, 0xff, b'0', b'"', b'<', b'\n'];
const NUMBERS: [&str; 16] = [
    "0", "-1", "1", "255", "256", "65535", "65536", "2147483647", "2147483648", "4294967295", "4294967296",
    "9223372036854775807", "18446744073709551615", "1e308", "-0.0", "NaN",
];
const LENGTHS: [u64; 12] =
    [0, 1, 7, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];

/// Mutates an input in one or more places. `other` is an input to splice from.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], dictionary: &[&str], random: &mut Random) {
    // A single mutation tells most, several get deeper: each further one is half as likely.
    let mut num_changes = 1;
    while num_changes < MAX_CHANGES && random.chance(0.5) {
        num_changes += 1;
    }
    for _ in 0..num_changes {
        change(input, other, dictionary, random);
    }
    input.truncate(MAX_LENGTH);
}

fn change(input: &mut Vec<u8>, other: &[u8], dictionary: &[&str], random: &mut Random) {
    if input.is_empty() {
        input.extend_from_slice(part_of(other, random));
        return;
    }
    let at = random.below(input.len());
    match random.below(14) {
        0 => input[at] ^= 1 << random.below(8),
        1 => input[at] = BYTES[random.below(BYTES.len())],
        2 => input[at] = random.next_u64() as u8,
        3 => input[at] = input[at].wrapping_add(1 + random.below(8) as u8).wrapping_sub(4),
        4 => drop(input.drain(some_range(input.len(), random))),
        5 => {
            let part = input[some_range(input.len(), random)].to_vec();
            insert(input, at, &part);
        }
        6 => {
            // The same slice many times: depth and count.
            let part = &input[some_range(input.len().min(at + 16), random)];
            let part = part.repeat(1 << random.below(11));
            insert(input, at, &part);
        }
        7 => swap(input, random),
        8 => insert(input, at, part_of(other, random)),
        9 => {
            let keep = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[keep..]);
        }
        10 => input.truncate(at),
        11 => set_length(input, at, random),
        12 => set_number(input, at, random),
        _ if dictionary.is_empty() => input[at] ^= 0xff,
        _ => {
            let word = dictionary[random.below(dictionary.len())].as_bytes();
            if random.chance(0.5) {
                insert(input, at, word);
            } else {
                let end = input.len().min(at + word.len());
                input.splice(at..end, word.iter().copied());
            }
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    let part = &part[..part.len().min(MAX_LENGTH.saturating_sub(input.len()))];
    input.splice(at..at, part.iter().copied());
}

/// Short ranges are more likely than long ones.
fn some_range(length: usize, random: &mut Random) -> std::ops::Range<usize> {
    let start = random.below(length);
    let most = (length - start).min(1 << random.below(13));
    start..start + 1 + random.below(most)
}

fn part_of<'a>(other: &'a [u8], random: &mut Random) -> &'a [u8] {
    if other.is_empty() { b"\0" } else { &other[some_range(other.len(), random)] }
}

fn swap(input: &mut [u8], random: &mut Random) {
    let length = 1 + random.below(input.len().min(64));
    let first = random.below(input.len() - length + 1);
    let second = random.below(input.len() - length + 1);
    for i in 0..length {
        input.swap(first + i, second + i);
    }
}

/// A length field of 1 to 8 bytes in either byte order.
fn set_length(input: &mut [u8], at: usize, random: &mut Random) {
    let size = (1 << random.below(4)).min(input.len() - at);
    let value = match random.below(3) {
        0 => LENGTHS[random.below(LENGTHS.len())],
        1 => input.len() as u64,
        _ => random.next_u64() >> random.below(64),
    };
    let bytes = value.to_le_bytes();
    let field = &mut input[at..at + size];
    field.copy_from_slice(&bytes[..size]);
    if random.chance(0.5) {
        field.reverse();
    }
}

/// Replaces the next number written as text from `at` on, if any.
fn set_number(input: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = input[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else {
        return;
    };
    let end =
        input[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(input.len(), |n| start + n);
    let number = match random.below(3) {
        0 => (random.next_u64() >> (44 + random.below(20))).to_string(),
        _ => NUMBERS[random.below(NUMBERS.len())].to_string(),
    };
    input.splice(start..end, number.into_bytes());
}
