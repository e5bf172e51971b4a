// SPDX-License-Identifier: GPL-2.0

//! Resources released before all others.
//!
//! Devres releases the resources of a device in the reverse order of their acquisition. That is too
//! late for a resource that hands out the bound device to code running at any time, such as ioctls
//! and exporter callbacks. Such code would run after later resources are gone and take its
//! `&Device<Bound>` as a proof of their presence. An [`Early`] ends before any of them regardless
//! of the order.
//!
//! C header: [`include/linux/device/devres.h`](srctree/include/linux/device/devres.h)

use crate::{
    bindings,
    device::{
        Bound,
        Core,
        Device, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full, //
        },
        Arc,
        Completion, //
    },
    types::Opaque, //
};
use core::ptr;
use pin_init::Wrapper;

/// The data of a devres node: a reference to a [`Slot`] and the function to drop its value and put
/// the reference.
struct Node {
    slot: *const c_void,
    release: unsafe fn(*const c_void),
    turn: Turn,
}

/// When an early value of a device is dropped. Values of the same turn are dropped in reverse
/// order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// First: entry points of userspace. They may create and use the other values.
    Interface,
    /// Then: entry points of other devices and of the kernel.
    Callbacks,
}

/// A value and whether a task has begun to drop it.
///
/// # Invariants
///
/// `value` is initialized until `is_going` is true.
#[pin_data]
struct Slot<T> {
    #[pin]
    value: Opaque<T>,
    is_going: Atomic<bool>,
    #[pin]
    gone: Completion,
}

impl<T> Slot<T> {
    /// Drops the value or waits until another task has dropped it. Returns whether this call did.
    fn end(&self) -> bool {
        if self.is_going.xchg(true, Full) {
            self.gone.wait_for_completion();
            return false;
        }
        // SAFETY: By the type invariant, and because only one task comes here.
        unsafe { ptr::drop_in_place(self.value.get()) };
        self.gone.complete_all();
        true
    }

    /// # Safety
    ///
    /// `slot` must be a reference to a value of this type. This call becomes its owner.
    unsafe fn release(slot: *const c_void) {
        // SAFETY: As the caller promises.
        unsafe { Arc::from_raw(slot.cast::<Self>()) }.end();
    }
}

/// A value dropped with its owner or when the driver of the device is unbound. An unbind drops it
/// after the private data of the driver and before devres releases any resource of the device.
///
/// If the driver is not written in Rust, the value is dropped in the order of all resources. This
/// only concerns faux devices, because safe code gets no other bound device without a Rust driver.
/// As for [`Devres`](crate::devres::Devres), the code dropping the value is in the caller's module.
/// This has to be the driver's module or one used by the driver.
///
/// The unbind and the owner wait for each other. So the owner must not drop this while it holds a
/// lock, or is in a section, that the drop of the value takes or waits for.
pub struct Early<T: Send + 'static> {
    dev: ARef<Device>,
    slot: Arc<Slot<T>>,
}

// SAFETY: Any task may drop the value and own the other fields.
unsafe impl<T: Send> Send for Early<T> {}

// SAFETY: A shared reference gives out the address of the value. It gives out a reference to the
// value only if the value is `Sync`.
unsafe impl<T: Send> Sync for Early<T> {}

impl<T: Send + 'static> Early<T> {
    /// Keeps the value initialized by `value` at most as long as the driver of `dev` is bound. An
    /// unbind drops it in its `turn`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out. Also returns the errors of `value`.
    pub fn new<E>(dev: &Device<Bound>, turn: Turn, value: impl PinInit<T, E>) -> Result<Self>
    where
        Error: From<E>,
    {
        // INVARIANT: The value is initialized here.
        let slot = Arc::pin_init::<Error>(
            try_pin_init!(Slot {
                value <- Opaque::pin_init(value),
                is_going: Atomic::new(false),
                gone <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let node = Node {
            slot: Arc::into_raw(slot.clone()).cast(),
            release: Slot::<T>::release,
            turn,
        };

        // SAFETY: The node owns the reference created above. The device is bound to a driver, whose
        // code stays until devres has released the node.
        if let Err(error) = unsafe { add(dev, node) } {
            // SAFETY: Nothing else has that reference.
            unsafe { Slot::<T>::release(Arc::as_ptr(&slot).cast()) };
            return Err(error);
        }
        Ok(Self {
            dev: dev.into(),
            slot,
        })
    }

    /// Returns the device.
    #[inline]
    pub fn device(&self) -> &Device {
        &self.dev
    }

    /// Returns the value for a callback of the driver.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `dev` is another device.
    /// - `ENODEV` if the value was dropped.
    pub fn access<'a>(&'a self, dev: &'a Device<Core<'_>>) -> Result<&'a T>
    where
        T: Sync,
    {
        if dev.as_raw() != self.dev.as_raw() {
            return Err(EINVAL);
        }
        if self.slot.is_going.load(Acquire) {
            return Err(ENODEV);
        }
        // SAFETY: By the type invariant of `Slot`. The value is not dropped meanwhile: the owner
        // has lent `self`, and an unbind waits for the device lock, which the context proves to be
        // held.
        Ok(unsafe { &*self.slot.value.get() })
    }

    /// Returns the address of the value. The value does not move.
    #[inline]
    pub fn as_ptr(&self) -> *mut T {
        self.slot.value.get()
    }
}

impl<T: Send + 'static> Drop for Early<T> {
    fn drop(&mut self) {
        let slot = Arc::as_ptr(&self.slot).cast::<c_void>();

        // SAFETY: The device is valid.
        if self.slot.end() && unsafe { remove(&self.dev, slot) } {
            // SAFETY: The reference of the node passes to this function; `self` has another one.
            drop(unsafe { Arc::from_raw(slot.cast::<Slot<T>>()) });
        }
    }
}

/// Gives a node to devres.
///
/// # Safety
///
/// `node.release` must be called once for `node.slot`. It must stay valid until then, unless the
/// node is [removed](remove).
// Neither generic nor inlined, because modules cannot call generic or inlined functions of this
// file.
#[inline(never)]
unsafe fn add(dev: &Device<Bound>, node: Node) -> Result {
    // SAFETY: The name is static. The memory has the size of a node and the alignment of any type.
    unsafe {
        let memory = bindings::__devres_alloc_node(
            Some(release_callback),
            size_of::<Node>(),
            GFP_KERNEL.as_raw(),
            bindings::NUMA_NO_NODE,
            c"Early<T>".as_char_ptr(),
        );

        if memory.is_null() {
            return Err(ENOMEM);
        }
        memory.cast::<Node>().write(node);
        bindings::devres_add(dev.as_raw(), memory);
    }
    Ok(())
}

/// Removes the node of a slot unless devres is releasing it. Returns whether the node was removed.
///
/// # Safety
///
/// The device must be valid.
#[inline(never)]
unsafe fn remove(dev: &Device, slot: *const c_void) -> bool {
    // SAFETY: All nodes with this function are of this file. Once removed from the list, a node
    // belongs to this task.
    unsafe {
        let memory = bindings::devres_remove(
            dev.as_raw(),
            Some(release_callback),
            Some(is_of_slot),
            slot.cast_mut(),
        );

        if !memory.is_null() {
            bindings::devres_free(memory);
        }
        !memory.is_null()
    }
}

/// # Safety
///
/// Called by devres with a node of this file.
unsafe extern "C" fn is_of_slot(
    _dev: *mut bindings::device,
    node: *mut c_void,
    slot: *mut c_void,
) -> c_int {
    // SAFETY: As promised by the caller.
    let node = unsafe { &*node.cast::<Node>() };

    ptr::eq(node.slot, slot).into()
}

/// # Safety
///
/// Called once by devres with a node of this file before its memory is freed.
// Not inlined, because devres finds the nodes of this file by this address.
#[inline(never)]
unsafe extern "C" fn release_callback(_dev: *mut bindings::device, node: *mut c_void) {
    // SAFETY: As promised by the caller.
    unsafe {
        let node = &*node.cast::<Node>();

        (node.release)(node.slot);
    }
}

/// # Safety
///
/// Called by devres with a node of this file; `turn` must point to a [`Turn`].
unsafe extern "C" fn is_of_turn(
    _dev: *mut bindings::device,
    node: *mut c_void,
    turn: *mut c_void,
) -> c_int {
    // SAFETY: As promised by the caller.
    let (node, turn) = unsafe { (&*node.cast::<Node>(), *turn.cast::<Turn>()) };

    (node.turn == turn).into()
}

/// Drops all [`Early`] values of a device.
///
/// # Safety
///
/// `dev` must be valid and in the process of being unbound from its driver. No resource may have
/// been released yet.
// Not inlined into modules for the same reason as `release_callback()`.
#[inline(never)]
pub(crate) unsafe fn release_all_early(dev: *mut bindings::device) {
    for turn in [Turn::Interface, Turn::Callbacks] {
        let data = ptr::from_ref(&turn).cast_mut().cast();

        // SAFETY: As promised by the caller.
        while unsafe {
            bindings::devres_release(dev, Some(release_callback), Some(is_of_turn), data)
        } == 0
        {}
    }
}

#[kunit_tests(rust_devres_early)]
mod tests {
    use super::*;
    use crate::{
        faux,
        sync::atomic::Relaxed, //
    };

    /// Records the position of a value in the order of all drops.
    struct Counted {
        all: Arc<Atomic<u32>>,
        own: Arc<Atomic<u32>>,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.own.store(self.all.fetch_add(1, Relaxed) + 1, Relaxed);
        }
    }

    #[test]
    fn each_value_is_dropped_once() -> Result {
        let faux = faux::Registration::new(c"devres_early", None)?;
        let bound: &faux::Device<Bound> = faux.as_ref();
        let all = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let mut owners = KVec::<Early<Counted>>::new();
        let mut drops = KVec::new();

        for turn in [
            Turn::Callbacks,
            Turn::Interface,
            Turn::Interface,
            Turn::Callbacks,
        ] {
            let own = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let value = Counted {
                all: all.clone(),
                own: own.clone(),
            };

            drops.push(own, GFP_KERNEL)?;
            owners.push(
                Early::new(bound.as_ref(), turn, Ok::<_, Error>(value))?,
                GFP_KERNEL,
            )?;
        }
        let dropped = || {
            let mut drops = drops.iter().map(|own| own.load(Relaxed));
            [(); 4].map(|()| drops.next().unwrap_or(0))
        };

        assert_eq!(dropped(), [0; 4]);
        let last = owners.pop().ok_or(ENOENT)?;
        drop(owners.remove(1)?);
        assert_eq!(dropped(), [0, 1, 0, 0]);
        // SAFETY: The device is valid and about to be unbound.
        unsafe { release_all_early(bound.as_ref().as_raw()) };
        assert_eq!(dropped(), [4, 1, 2, 3]);
        drop((faux, last, owners));
        assert_eq!(dropped(), [4, 1, 2, 3]);
        Ok(())
    }
}
