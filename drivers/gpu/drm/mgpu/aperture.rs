// SPDX-License-Identifier: GPL-2.0

//! The aperture: windows through which the CPU and other devices see VRAM.
//!
//! The aperture is context 0 of the device. Its page tables are in memory of the driver, and say
//! which page of VRAM each page of the BAR shows. The device looks at them when it is told to, and
//! says when it has done so.
//!
//! A window has a part of the BAR for itself, in several pieces if need be. Its part is given to
//! others when the device has said that the window is closed. If the device does not say so, even
//! when told once more, it has lost what it was told, and nobody knows what the BAR shows: no
//! window is made any more.
//!
//! # Locking
//!
//! One mutex, with which page tables are written and the device is told. It is taken with the
//! reservation of an object held, and for a page fault with the `mmap_lock`. Nothing is allocated
//! while it is held.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma_buf::mapping::RangeList,
    drm::vram::{
        Allocation,
        Allocator,
        Range,
        Ranges, //
    },
    io::poll::read_poll_timeout,
    new_mutex,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sizes::SZ_1G,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    time::Delta, //
};

use crate::{
    memory::{
        Status,
        Words,
        WORDS, //
    },
    regs::Regs, //
};

/// How much of the BAR is used at most: what one table of the second level has.
const MOST: u64 = SZ_1G as u64;

/// How long the device may take for an invalidation.
const TIME: Delta = Delta::from_secs(3);

/// How often it is told.
const TRIES: usize = 2;

/// Up to how many pieces it is told of each, and not of all that is between them.
const PIECES: usize = 4;

/// The bits of an entry.
const VALID: u64 = 1 << 0;
const VRAM: u64 = 1 << 2;
const LEAF: u64 = 1 << 3;

/// The page tables.
struct Tables {
    /// A table of contexts, with the root of the first one.
    contexts: Words,
    root: Words,
    /// The only one of the second level.
    middle: Words,
    /// Those of the last level.
    leaves: KVVec<Words>,
}

impl Tables {
    fn new(dev: &Device<Bound>, len: u64) -> Result<Self> {
        let this = Self {
            contexts: Words::new(dev, WORDS)?,
            root: Words::new(dev, WORDS)?,
            middle: Words::new(dev, WORDS)?,
            leaves: {
                let mut leaves = KVVec::new();

                for _ in 0..(len >> PAGE_SHIFT).div_ceil(WORDS as u64) {
                    leaves.push(Words::new(dev, WORDS)?, GFP_KERNEL)?;
                }
                leaves
            },
        };

        this.contexts.write(0, [this.root.address(0)])?;
        this.root.write(0, [this.middle.address(0) | VALID])?;
        let tables = this.leaves.iter().map(|table| table.address(0) | VALID);
        this.middle.write(0, tables)?;
        Ok(this)
    }

    /// Lets the pages of a piece of the BAR show pages of VRAM, or nothing.
    fn write(&self, bar: &Range, vram: &mut impl Iterator<Item = u64>) -> Result {
        let (mut page, end) = (
            usize::try_from(bar.offset >> PAGE_SHIFT)?,
            usize::try_from((bar.offset + bar.len) >> PAGE_SHIFT)?,
        );

        while page < end {
            let (table, first) = (page / WORDS, page % WORDS);
            let count = (WORDS - first).min(end - page);

            self.leaves
                .get(table)
                .ok_or(ERANGE)?
                .write(first, vram.by_ref().take(count))?;
            page += count;
        }
        Ok(())
    }
}

/// What the device was told.
struct State {
    /// The number of the last invalidation.
    number: u32,
    /// The device did not do one.
    is_broken: bool,
}

/// The aperture of a device.
#[pin_data]
pub(crate) struct Aperture {
    regs: Arc<Regs>,
    status: Arc<Status>,
    tables: Tables,
    /// Who has which part of the BAR.
    bar: Arc<Allocator>,
    dev: ARef<Device>,
    #[pin]
    state: Mutex<State>,
}

impl Aperture {
    /// Makes the aperture of a device that was just reset, whose BAR has `len` bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(
        dev: &Device<Bound>,
        regs: Arc<Regs>,
        status: Arc<Status>,
        len: u64,
    ) -> Result<Arc<Self>> {
        let len = len.min(MOST);
        let tables = Tables::new(dev, len)?;
        let bar = Allocator::new(0..len)?;
        let number = status.invalidated()?;

        Arc::pin_init(
            pin_init!(Self {
                regs,
                status,
                tables,
                bar,
                dev: dev.into(),
                state <- new_mutex!(
                    State {
                        number,
                        is_broken: false,
                    },
                    "mgpu::Aperture"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the bus address of the table of contexts.
    pub(crate) fn contexts(&self) -> u64 {
        self.tables.contexts.address(0)
    }

    /// Returns how many bytes it has.
    pub(crate) fn len(&self) -> u64 {
        self.bar.size()
    }

    /// Returns how many of them no window has.
    pub(crate) fn free(&self) -> u64 {
        self.bar.avail()
    }

    /// Makes a window that shows an object, and appends its pieces to `pieces`, see
    /// [`kernel::drm::vram::Aperture::map`].
    pub(crate) fn map(self: &Arc<Self>, vram: &Ranges, pieces: &mut RangeList) -> Result<Window> {
        let size = vram.bytes_below(u64::MAX);
        if size > self.len() {
            return Err(E2BIG);
        }

        let part = self.bar.alloc(size)?;
        for piece in part.ranges().ranges() {
            pieces.push_piece(piece.offset, piece.len)?;
        }

        let mut state = self.state.lock();
        if state.is_broken {
            return Err(EIO);
        }
        // From here on its drop closes it.
        let window = Window {
            aperture: self.clone(),
            part,
        };
        let pages = vram
            .ranges()
            .iter()
            .flat_map(|range| (range.offset..range.offset + range.len).step_by(PAGE_SIZE))
            .map(|offset| offset | VALID | VRAM | LEAF);
        let ret = self.change(&mut state, window.part.ranges().ranges(), pages);

        // Its drop takes the lock.
        drop(state);
        ret.map(|()| window)
    }

    /// Writes entries, and tells the device.
    fn change(
        &self,
        state: &mut State,
        part: &[Range],
        mut entries: impl Iterator<Item = u64>,
    ) -> Result {
        for piece in part {
            self.tables.write(piece, &mut entries)?;
        }

        if part.len() <= PIECES {
            return part
                .iter()
                .try_for_each(|piece| self.invalidate(state, piece.offset, piece.len));
        }
        let start = part.iter().map(|piece| piece.offset).min().unwrap_or(0);
        let end = part
            .iter()
            .map(|piece| piece.offset + piece.len)
            .max()
            .unwrap_or(0);
        self.invalidate(state, start, end - start)
    }

    /// Has the device look at a part of the tables.
    fn invalidate(&self, state: &mut State, start: u64, len: u64) -> Result {
        for _ in 0..TRIES {
            state.number = state.number.wrapping_add(1);
            let number = state.number;

            self.regs.invalidate(0, start, len, number)?;
            let ret = read_poll_timeout(
                || self.status.invalidated(),
                |done| *done == number,
                Delta::from_micros(20),
                TIME,
            );
            match ret {
                Ok(_) => return Ok(()),
                Err(e) if e == ENODEV => return Err(e),
                Err(_) if self.regs.is_gone() => {
                    state.is_broken = true;
                    return Err(ENODEV);
                }
                Err(_) => dev_info!(self.dev, "invalidation {} is not done\n", number),
            }
        }

        dev_err!(self.dev, "nobody knows what the aperture shows\n");
        state.is_broken = true;
        Err(EIO)
    }
}

/// A window, which is closed when this is dropped.
pub(crate) struct Window {
    aperture: Arc<Aperture>,
    // Given back after that.
    part: Allocation,
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut state = self.aperture.state.lock();

        // A device that is gone, or has no driver, shows nothing. For what is broken see the
        // module.
        if !state.is_broken {
            let entries = core::iter::repeat(0);
            let _ = self
                .aperture
                .change(&mut state, self.part.ranges().ranges(), entries);
        }
    }
}
