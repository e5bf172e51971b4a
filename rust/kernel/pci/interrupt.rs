// SPDX-License-Identifier: GPL-2.0

//! Interrupts of a PCI device with a threaded handler and a timer for lost interrupts.
//!
//! The handler of the device's first vector runs in a thread of its own, so that it may sleep. The
//! thread is woken by the interrupt and by a timer set by the handler and the driver. So the
//! handler detects a lost interrupt or a device not doing its work. It is never called on two
//! processors at once.
//!
//! The vector is a resource of the device: it is released before the driver is unbound, even if the
//! [`Interrupt`] is still referenced. The handler is dropped by then. It must not own the last
//! reference to the [`Interrupt`]. Dropping that waits for the handler, which would wait for itself
//! for ever.
//!
//! It is for MSI and MSI-X only, because the handler cannot report that a shared interrupt is from
//! another device.
//!
//! C headers: [`include/linux/interrupt.h`](srctree/include/linux/interrupt.h),
//! [`include/linux/timer.h`](srctree/include/linux/timer.h)

use super::{
    Device,
    IrqTypes,
    IrqVectorRegistration, //
};
use crate::{
    bindings,
    container_of,
    device::Bound,
    devres::Devres,
    error::to_result,
    prelude::*,
    sync::LockClassKey,
    time::{
        msecs_to_jiffies,
        Msecs, //
    },
    types::Opaque, //
};
use core::marker::PhantomPinned;

/// The handler of the interrupts of a device.
pub trait InterruptHandler: Send + Sync + 'static {
    /// Handles the work done by the device. Sleeps.
    ///
    /// Called after each interrupt and when a set time has elapsed. One call may stand for several
    /// interrupts. Returns after how many milliseconds it has to be called again at the latest.
    /// Returns [`None`] if an interrupt or [`Interrupt::poll_in`] is enough.
    fn handle(&self) -> Option<Msecs>;
}

/// A vector and its handler.
///
/// # Invariants
///
/// Once it is initialized, `thread_callback` is registered for `irq` with a pointer to `self`.
#[pin_data(PinnedDrop)]
struct Line<H: InterruptHandler> {
    #[pin]
    timer: Opaque<bindings::timer_list>,
    irq: u32,
    #[pin]
    handler: H,
    // Released after the handler was removed.
    _vectors: IrqVectorRegistration<'static>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The timer may be used from any context and `H` is `Send`.
unsafe impl<H: InterruptHandler> Send for Line<H> {}

// SAFETY: As for `Send`. The core of the timers synchronizes them and `H` is `Sync`.
unsafe impl<H: InterruptHandler> Sync for Line<H> {}

impl<H: InterruptHandler> Line<H> {
    fn new(
        vectors: IrqVectorRegistration<'static>,
        irq: u32,
        name: &'static CStr,
        handler: impl PinInit<H, Error>,
    ) -> impl PinInit<Self, Error> {
        // INVARIANT: The handler is registered last.
        try_pin_init!(&this in Self {
            timer <- Opaque::ffi_init(|timer| init_timer(timer, timer_callback::<H>)),
            irq,
            handler <- handler,
            _vectors: vectors,
            _pin: PhantomPinned,
            _: {
                // SAFETY: All fields are initialized, so the handler may be called at once. They
                // stay at this address until `PinnedDrop` removes the handler. The name is static.
                to_result(unsafe {
                    bindings::request_threaded_irq(
                        *irq,
                        None,
                        Some(thread_callback::<H>),
                        bindings::IRQF_ONESHOT as c_ulong,
                        name.as_char_ptr(),
                        this.as_ptr().cast(),
                    )
                })?;
            },
        })
    }

    fn poll_in(&self, delay: Msecs) {
        // SAFETY: The timer was initialized. After its shutdown this does nothing.
        unsafe { set_timer(self.timer.get(), delay) };
    }
}

#[pinned_drop]
impl<H: InterruptHandler> PinnedDrop for Line<H> {
    fn drop(self: Pin<&mut Self>) {
        let this: *const Self = &*self;

        // SAFETY: By the type invariant. When the first call returns, the timer does not wake the
        // thread any more, even if the handler sets it. When the second one returns, the handler
        // has returned. May sleep: the caller is devres or drops the last reference.
        unsafe {
            bindings::timer_shutdown_sync(self.timer.get());
            bindings::free_irq(self.irq, this.cast_mut().cast());
        }
    }
}

// Neither generic nor inlined, so that the lock class and its name stay in the kernel crate.
#[inline(never)]
fn init_timer(
    timer: *mut bindings::timer_list,
    callback: unsafe extern "C" fn(*mut bindings::timer_list),
) {
    static CLASS: Pin<&'static LockClassKey> = crate::static_lock_class!();

    // SAFETY: The memory is that of an unused timer and the class is static.
    unsafe {
        bindings::timer_init_key(
            timer,
            Some(callback),
            0,
            c"pci::Interrupt".as_char_ptr(),
            CLASS.as_ptr(),
        )
    };
}

/// Makes a timer expire in `delay` milliseconds unless it does so earlier.
///
/// # Safety
///
/// The timer must be initialized.
#[inline(never)]
unsafe fn set_timer(timer: *mut bindings::timer_list, delay: Msecs) {
    // SAFETY: The timer's interrupt changes the number. It is read at once.
    let now = unsafe { (&raw const bindings::jiffies).read_volatile() };

    // SAFETY: By the safety requirements.
    unsafe { bindings::timer_reduce(timer, now.wrapping_add(msecs_to_jiffies(delay))) };
}

/// # Safety
///
/// Called by the timer core with the timer of a [`Line<H>`].
unsafe extern "C" fn timer_callback<H: InterruptHandler>(timer: *mut bindings::timer_list) {
    // SAFETY: By the safety requirements. The timer is shut down before the line is gone.
    let line = unsafe { container_of!(Opaque::cast_from(timer), Line<H>, timer) };

    // SAFETY: The line is valid. Its handler is registered or about to be. In the latter case no
    // thread is woken.
    unsafe { bindings::irq_wake_thread((*line).irq, line.cast_mut().cast()) };
}

/// # Safety
///
/// Called by the interrupt core with the pointer registered by [`Line::new`].
unsafe extern "C" fn thread_callback<H: InterruptHandler>(
    _irq: c_int,
    line: *mut c_void,
) -> bindings::irqreturn_t {
    // SAFETY: By the safety requirements this is a `Line<H>`. It is valid until `free_irq()`,
    // called when it is dropped, has returned.
    let line = unsafe { &*line.cast::<Line<H>>() };

    if let Some(delay) = line.handler.handle() {
        line.poll_in(delay);
    }
    bindings::irqreturn_t(bindings::irqreturn::IRQ_HANDLED.0)
}

/// The interrupt of a device until its driver is unbound.
///
/// # Examples
///
/// ```
/// use kernel::{
///     device::Bound,
///     pci::{
///         self,
///         Interrupt,
///         InterruptHandler, //
///     },
///     prelude::*,
///     sync::atomic::{
///         Atomic,
///         Relaxed, //
///     },
///     time::Msecs, //
/// };
///
/// /// Counts calls. The handler is called at least once per second.
/// struct Counter(Atomic<u32>);
///
/// impl InterruptHandler for Counter {
///     fn handle(&self) -> Option<Msecs> {
///         self.0.fetch_add(1, Relaxed);
///         Some(1000)
///     }
/// }
///
/// fn count(pdev: &pci::Device<Bound>) -> Result<Interrupt<Counter>> {
///     let msi = pci::IrqTypes::default().with(pci::IrqType::Msi);
///     let counter = Ok::<_, Error>(Counter(Atomic::new(0)));
///     let interrupt = Interrupt::new(pdev, msi, c"counter", counter)?;
///
///     interrupt.poll_in(1000);
///     Ok(interrupt)
/// }
/// ```
pub struct Interrupt<H: InterruptHandler>(Devres<Line<H>>);

impl<H: InterruptHandler> Interrupt<H> {
    /// Allocates one vector of the device and lets `handler` handle it. `name` is shown in
    /// `/proc/interrupts`.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the device has no interrupt of these types, `ENOMEM` if memory runs out, and the
    /// errors of `request_threaded_irq()` and `handler`.
    pub fn new(
        pdev: &Device<Bound>,
        types: IrqTypes,
        name: &'static CStr,
        handler: impl PinInit<H, Error>,
    ) -> Result<Self> {
        // SAFETY: A `Line` owns everything created with this reference. Devres drops the line while
        // the device is still bound. Nothing else keeps it.
        let bound: &'static Device<Bound> = unsafe { &*core::ptr::from_ref(pdev) };
        let vectors = bound.alloc_irq_vectors(1, 1, types)?;
        let irq = crate::irq::IrqRequest::from(vectors.index(0)?).irq();

        Ok(Self(Devres::new(
            pdev.as_ref(),
            Line::new(vectors, irq, name, handler),
        )?))
    }

    /// Makes the handler be called in `delay` milliseconds or earlier. Does nothing after the
    /// driver was unbound. May be called in any context.
    pub fn poll_in(&self, delay: Msecs) {
        self.0.try_access_with(|line| line.poll_in(delay));
    }
}
