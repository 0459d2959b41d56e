//! The arena in host memory.
//!
//! Memory comes zeroed from the allocator, which for anything large means fresh pages of the operating system: an
//! arena costs what is written to it, not what it could hold.
//!
//! The only unsafe code of the host side is here: taking and returning the memory, and the way from a byte range
//! that [`Grids`] has checked to the bytes.
#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::ops::Range;
use std::ptr::{self, NonNull};

use kvtide_core::unit::{Bytes, PoolId};

use super::pattern;
use super::{
    AccessError, CopyError, DeviceUnavailable, Engine, Grids, PageCheck, PageMove, PageWrite,
    Verified, VerifyError,
};

/// An arena in host memory, its own or the caller's; copies with `memcpy`.
#[derive(Debug)]
pub struct HostEngine {
    grids: Grids,
    memory: Memory,
}

impl HostEngine {
    /// An arena of its own, all zero.
    ///
    /// # Errors
    /// [`DeviceUnavailable::Allocation`] if this machine does not give that much memory.
    pub fn new(grids: Grids) -> Result<Self, DeviceUnavailable> {
        let memory = Memory::zeroed(grids.total())?;
        Ok(HostEngine { grids, memory })
    }

    /// An arena at the start of the caller's memory.
    ///
    /// # Errors
    /// [`DeviceUnavailable::SmallMemory`] if `len` is less than the arena, or no length that memory can have.
    ///
    /// # Safety
    /// Until the engine is dropped, `base` must be valid for reads and writes of `len` initialised bytes, and nobody
    /// else may access them while one of the engine's methods runs.
    pub unsafe fn over(
        grids: Grids,
        base: NonNull<u8>,
        len: Bytes,
    ) -> Result<Self, DeviceUnavailable> {
        let arena = grids.total();
        match usize::try_from(arena.0) {
            Ok(arena) if arena as u64 <= len.0 && isize::try_from(arena).is_ok() => {
                Ok(HostEngine { grids, memory: Memory { base, len: arena, own: None } })
            }
            _ => Err(DeviceUnavailable::SmallMemory { arena, given: len }),
        }
    }
}

impl Engine for HostEngine {
    fn grids(&self) -> &Grids {
        &self.grids
    }

    fn write(&mut self, pool: PoolId, pages: &[PageWrite]) -> Result<(), AccessError> {
        for write in pages {
            self.grids.range(pool, write.page)?;
        }
        for write in pages {
            let range = self.grids.range(pool, write.page)?;
            pattern::fill(pool, write.tag, self.memory.bytes_mut(range));
        }
        Ok(())
    }

    fn copy(&mut self, pool: PoolId, moves: &[PageMove]) -> Result<(), CopyError> {
        self.grids.check_batch(pool, moves)?;
        for step in moves {
            let from = self.grids.range(pool, step.from)?;
            let to = self.grids.range(pool, step.to)?;
            self.memory.copy(from, to);
        }
        Ok(())
    }

    fn verify(&mut self, pages: &[PageCheck]) -> Result<Verified, VerifyError> {
        for check in pages {
            self.grids.range(check.pool, check.page)?;
        }
        for check in pages {
            let range = self.grids.range(check.pool, check.page)?;
            pattern::compare(check.pool, check.page, check.tag, self.memory.bytes(range))?;
        }
        Ok(Verified { verified: pages.len() as u64, in_range: 0 })
    }
}

/// A range of initialised bytes that nobody else touches while a method runs.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// How the memory was taken from the allocator, if it was.
    own: Option<Layout>,
}

impl Memory {
    fn zeroed(asked: Bytes) -> Result<Self, DeviceUnavailable> {
        let refused = DeviceUnavailable::Allocation { asked };
        let Ok(len) = usize::try_from(asked.0) else { return Err(refused) };
        // A larger alignment would make the system allocator write all the zeroes itself.
        let Ok(layout) = Layout::from_size_align(len.max(1), 16) else { return Err(refused) };
        // SAFETY: the layout's size is at least 1, by `max` above.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { return Err(refused) };
        Ok(Memory { base, len, own: Some(layout) })
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        let range = self.checked(range);
        // SAFETY: `checked` keeps the range inside the `len` initialised bytes at `base`, and `&self` keeps this
        // engine from writing to them meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) }
    }

    fn bytes_mut(&mut self, range: Range<u64>) -> &mut [u8] {
        let range = self.checked(range);
        // SAFETY: as in `bytes`, and `&mut self` makes this the only slice of them.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(range.start), range.len()) }
    }

    fn copy(&mut self, from: Range<u64>, to: Range<u64>) {
        let (from, to) = (self.checked(from), self.checked(to));
        assert_eq!(from.len(), to.len(), "a page and its target are alike long");
        assert!(from.end <= to.start || to.end <= from.start, "a page and its target are apart");
        let base = self.base.as_ptr();
        // SAFETY: both ranges are inside the memory by `checked`, equally long and apart by the assertions.
        unsafe {
            ptr::copy_nonoverlapping(base.add(from.start), base.add(to.start), from.len());
        }
    }

    /// The range as indices, inside the memory.
    fn checked(&self, range: Range<u64>) -> Range<usize> {
        assert!(range.start <= range.end, "a range ends after its start");
        assert!(range.end <= self.len as u64, "a page lies inside the arena's memory");
        range.start as usize..range.end as usize
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = self.own {
            // SAFETY: `base` came from `alloc_zeroed` with this very layout, and is freed only here.
            unsafe { alloc::dealloc(self.base.as_ptr(), layout) };
        }
    }
}

// SAFETY: the memory is this value's own, or the caller of `HostEngine::over` promised that nobody else accesses it
// while a method runs; nothing about it is tied to a thread.
unsafe impl Send for Memory {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Tag;
    use kvtide_core::unit::PageId;

    #[test]
    fn an_arena_larger_than_any_machine_is_refused() {
        for total in [1 << 60, u64::MAX] {
            let grids = Grids::new(Bytes(total), Bytes(8), vec![Bytes(8)]);
            let refused = HostEngine::new(grids).map(|_| ()).unwrap_err();
            assert!(matches!(refused, DeviceUnavailable::Allocation { asked } if asked.0 == total));
        }
    }

    #[test]
    fn a_callers_memory_holds_the_arena_and_keeps_it() {
        let mut memory = vec![0u8; 40];
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        let grids = Grids::new(Bytes(40), Bytes(8), vec![Bytes(8)]);
        // SAFETY: `memory` outlives the engine and is not touched until that is gone.
        let refused = unsafe { HostEngine::over(grids.clone(), base, Bytes(39)) };
        assert!(matches!(refused, Err(DeviceUnavailable::SmallMemory { .. })));
        // SAFETY: as above.
        let mut engine = unsafe { HostEngine::over(grids, base, Bytes(40)) }.unwrap();
        engine.write(PoolId(0), &[PageWrite { page: PageId(2), tag: Tag(6) }]).unwrap();
        drop(engine);
        assert_eq!(pattern::compare(PoolId(0), PageId(2), Tag(6), &memory[16..24]), Ok(()));
        assert_eq!(memory[..16], [0; 16]);
        assert_eq!(memory[24..], [0; 16]);
    }
}
