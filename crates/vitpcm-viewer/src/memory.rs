//! The memory budget for clients. A [`Share`] of a [`Budget`] is taken before memory is filled and stored with the
//! value it accounts for, so that it is returned when that memory is freed: after the last byte of a response is sent,
//! or when its connection ends.

use crate::answer::Refusal;
use axum::body::Bytes;
use std::collections::VecDeque;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Piece size of large responses.
pub(crate) const PIECE: usize = 64 << 10;

/// Budgets count in KiB, so that 32 bits are enough.
const UNIT: usize = 1 << 10;

/// A number of bytes, partly in use.
#[derive(Clone)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    num_bytes: usize,
}

/// Bytes taken from a budget; returned on drop.
pub(crate) struct Share(OwnedSemaphorePermit);

impl Budget {
    pub(crate) fn new(num_bytes: usize) -> Budget {
        let num_units = (num_bytes / UNIT).min(u32::MAX as usize);
        Budget { free: Arc::new(Semaphore::new(num_units)), num_bytes: num_units * UNIT }
    }

    /// The total, in use or not.
    pub(crate) fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// A share of `num_bytes`, or a 503 if there is no room.
    pub(crate) fn take(&self, num_bytes: usize) -> Result<Share, Refusal> {
        let num_units = u32::try_from(num_bytes.div_ceil(UNIT)).map_err(|_| Refusal::busy())?;
        self.free.clone().try_acquire_many_owned(num_units).map(Share).map_err(|_| Refusal::busy())
    }
}

impl Share {
    fn num_bytes(&self) -> usize {
        self.0.num_permits() * UNIT
    }
}

/// Bytes that arrive in parts. Memory is charged as they arrive, never because a header announced a length.
pub(crate) struct HeldBytes {
    bytes: Vec<u8>,
    share: Share,
    budget: Budget,
}

impl HeldBytes {
    pub(crate) fn new(budget: &Budget) -> Result<HeldBytes, Refusal> {
        Ok(HeldBytes { bytes: Vec::new(), share: budget.take(0)?, budget: budget.clone() })
    }

    /// Appends bytes. `expected` is the total number, as far as it is known.
    pub(crate) fn extend(&mut self, bytes: &[u8], expected: usize) -> Result<(), Refusal> {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let capacity = (2 * self.bytes.capacity()).min(expected).max(needed);
            if let Some(more) = capacity.checked_sub(self.share.num_bytes()) {
                self.share.0.merge(self.budget.take(more)?.0);
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The bytes and their share.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Share) {
        (self.bytes, self.share)
    }
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes with their share, for [`Bytes::from_owner`].
pub(crate) struct Paid {
    pub(crate) bytes: Bytes,
    #[expect(dead_code, reason = "held, not read")]
    pub(crate) share: Share,
}

impl AsRef<[u8]> for Paid {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Error message for a download beyond its limit.
pub(crate) fn too_large(max_bytes: usize) -> String {
    format!("more than {} MiB in one download; choose fewer images or tags", max_bytes >> 20)
}

/// A file under construction, in pieces that are returned to the budget as soon as they are sent. Writing fails with
/// [`io::ErrorKind::FileTooLarge`] beyond `max_bytes` and with [`io::ErrorKind::OutOfMemory`] if the budget is
/// exhausted.
pub(crate) struct Pieces {
    budget: Budget,
    max_bytes: usize,
    pieces: VecDeque<(Vec<u8>, Share)>,
    position: usize,
    has_failed: bool,
}

impl Pieces {
    pub(crate) fn new(budget: &Budget, max_bytes: usize) -> Pieces {
        let (budget, pieces) = (budget.clone(), VecDeque::new());
        Pieces { budget, max_bytes, pieces, position: 0, has_failed: false }
    }

    pub(crate) fn into_bytes(self) -> VecDeque<Bytes> {
        let paid = |(bytes, share): (Vec<u8>, Share)| Paid { bytes: bytes.into(), share };
        self.pieces.into_iter().map(|piece| Bytes::from_owner(paid(piece))).collect()
    }

    fn len(&self) -> usize {
        self.pieces.back().map_or(0, |(last, _)| (self.pieces.len() - 1) * PIECE + last.len())
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (index, offset) = (self.position / PIECE, self.position % PIECE);
        let num_bytes = bytes.len().min(PIECE - offset);
        if self.position + num_bytes > self.max_bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(self.max_bytes)));
        }
        if index == self.pieces.len() {
            let share = self.budget.take(PIECE).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            self.pieces.push_back((Vec::with_capacity(PIECE), share));
        }
        let piece = &mut self.pieces[index].0;
        let overwritten = num_bytes.min(piece.len() - offset);
        piece[offset..offset + overwritten].copy_from_slice(&bytes[..overwritten]);
        piece.extend_from_slice(&bytes[overwritten..num_bytes]);
        self.position += num_bytes;
        Ok(num_bytes)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An abandoned zip archive still writes its end on drop, and would print an error if that failed.
        if self.has_failed {
            return Ok(bytes.len());
        }
        let written = self.write_some(bytes);
        self.has_failed = written.is_err();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Pieces {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(position) => (0, position as i64),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.len(), by),
        };
        let position = base.checked_add_signed(by as isize).filter(|&position| position <= self.len());
        // After a failure the file is shorter than its writer believes; nobody reads it.
        let position = position.or(self.has_failed.then_some(self.len()));
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_a_file_that_can_be_rewritten_in_place() {
        let budget = Budget::new(4 * PIECE);
        let mut pieces = Pieces::new(&budget, usize::MAX);
        let mut expected = io::Cursor::new(Vec::new());
        for (at, num_bytes, value) in
            [(0, 100, 1), (100, 2 * PIECE, 2), (50, 10, 3), (PIECE - 3, 6, 4), (PIECE + 90, PIECE, 5)]
        {
            for file in [&mut pieces as &mut dyn WriteAndSeek, &mut expected] {
                file.seek(SeekFrom::Start(at as u64)).unwrap();
                file.write_all(&vec![value; num_bytes]).unwrap();
                assert_eq!(file.stream_position().unwrap(), (at + num_bytes) as u64);
            }
        }
        assert_eq!(pieces.seek(SeekFrom::End(-5)).unwrap(), expected.seek(SeekFrom::End(-5)).unwrap());
        assert!(pieces.seek(SeekFrom::End(1)).is_err());
        let bytes: Vec<u8> = pieces.into_bytes().into_iter().flatten().collect();
        assert!(bytes == expected.into_inner());
    }

    trait WriteAndSeek: Write + Seek {}
    impl<T: Write + Seek> WriteAndSeek for T {}

    #[test]
    fn a_piece_that_was_sent_makes_room_for_others() {
        let budget = Budget::new(2 * PIECE);
        let mut pieces = Pieces::new(&budget, usize::MAX);
        pieces.write_all(&[0; PIECE + 1]).unwrap();
        assert!(budget.take(1).is_err());
        let mut sent = pieces.into_bytes();
        drop(sent.pop_front());
        assert!(budget.take(PIECE).is_ok() && budget.take(PIECE + 1).is_err());
    }

    #[test]
    fn a_file_beyond_its_budget_or_its_limit_fails_once() {
        for (budget, max_bytes, kind) in [
            (PIECE, usize::MAX, io::ErrorKind::OutOfMemory),
            (10 * PIECE, PIECE, io::ErrorKind::FileTooLarge),
        ] {
            let mut pieces = Pieces::new(&Budget::new(budget), max_bytes);
            assert_eq!(pieces.write_all(&[0; 2 * PIECE]).unwrap_err().kind(), kind);
            pieces.write_all(&[0; 2 * PIECE]).unwrap();
            assert!(pieces.len() <= PIECE);
        }
    }

    #[test]
    fn bytes_that_arrive_take_their_share_as_they_come() {
        let budget = Budget::new(10 << 10);
        let mut held = HeldBytes::new(&budget).unwrap();
        held.extend(&[1; 1000], 8 << 10).unwrap();
        assert!(budget.take(9 << 10).is_ok());
        for _ in 0..7 {
            held.extend(&[1; 1000], 8 << 10).unwrap();
        }
        assert!(budget.take(2 << 10).is_ok() && budget.take(3 << 10).is_err());
        assert!(held.extend(&[1; 4000], 12_000).is_err());
        let (bytes, share) = held.into_parts();
        assert_eq!(bytes, [1; 8000]);
        drop(share);
        assert!(budget.take(10 << 10).is_ok());
    }
}
