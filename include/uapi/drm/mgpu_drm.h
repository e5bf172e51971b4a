/* SPDX-License-Identifier: MIT */
/*
 * uAPI of the mgpu driver: a GPU that is modelled outside of QEMU, whose VRAM
 * is exported peer to peer.
 *
 * Every structure has the same layout for 32- and 64-bit callers. Fields named
 * pad and flag bits that are not listed here must be zero, or the call returns
 * -EINVAL. Sizes and offsets are in bytes. The ioctls DRM_IOCTL_MGPU_PEER_*
 * are those of drm_peer.h.
 *
 * Where mgpu and vvram have the same ioctl, the structures have the same
 * layout. A field that one of them does not have is named pad there.
 */
#ifndef _UAPI_MGPU_DRM_H_
#define _UAPI_MGPU_DRM_H_

#include "drm.h"
#include "drm_peer.h"
#include "drm_sync_entry.h"

#if defined(__cplusplus)
extern "C" {
#endif

#define DRM_MGPU_GETPARAM		0x00
#define DRM_MGPU_GEM_CREATE		0x01
#define DRM_MGPU_GEM_MMAP_OFFSET	0x02
#define DRM_MGPU_PEER_ATTACHMENTS	0x03
#define DRM_MGPU_GEM_INFO		0x04
#define DRM_MGPU_PEER_IMPORT_INFO	0x05
#define DRM_MGPU_GEM_COPY		0x06
#define DRM_MGPU_PEER_QUERY		0x07
#define DRM_MGPU_VM_CREATE		0x08
#define DRM_MGPU_VM_DESTROY		0x09
#define DRM_MGPU_VM_BIND		0x0a
#define DRM_MGPU_EXEC			0x0b
#define DRM_MGPU_VM_FAILURES		0x0c
#define DRM_MGPU_PEER_FLUSH		0x0d

/**
 * enum drm_mgpu_param - parameters that DRM_IOCTL_MGPU_GETPARAM returns
 */
enum drm_mgpu_param {
	/** @DRM_MGPU_PARAM_VRAM_SIZE: all VRAM of the device, in bytes. */
	DRM_MGPU_PARAM_VRAM_SIZE = 0,
	/**
	 * @DRM_MGPU_PARAM_APERTURE_SIZE: the part of the aperture through which
	 * the CPU and peers see objects in VRAM, in bytes.
	 */
	DRM_MGPU_PARAM_APERTURE_SIZE = 1,
	/**
	 * @DRM_MGPU_PARAM_PAGE_SIZE: the unit that sizes of objects are rounded
	 * up to, in bytes.
	 */
	DRM_MGPU_PARAM_PAGE_SIZE = 2,
	/**
	 * @DRM_MGPU_PARAM_VRAM_PIN_LIMIT: how much VRAM may be pinned, in
	 * bytes.
	 */
	DRM_MGPU_PARAM_VRAM_PIN_LIMIT = 3,
	/**
	 * @DRM_MGPU_PARAM_JOB_HANGS: how many jobs of this open file have hung.
	 * Each holds up all other clients, so with DRM_MGPU_PARAM_HANGS_MAX of
	 * them the jobs that have not begun are cancelled, and the file can
	 * queue no more: DRM_IOCTL_MGPU_EXEC returns -ECANCELED.
	 */
	DRM_MGPU_PARAM_JOB_HANGS = 4,
	/**
	 * @DRM_MGPU_PARAM_COPY_HANGS: the same for copies, and
	 * DRM_IOCTL_MGPU_GEM_COPY.
	 */
	DRM_MGPU_PARAM_COPY_HANGS = 5,
	/**
	 * @DRM_MGPU_PARAM_SYNC_MAX: how many entries in_syncs may have, and how
	 * many out_syncs.
	 */
	DRM_MGPU_PARAM_SYNC_MAX = 6,
	/**
	 * @DRM_MGPU_PARAM_COPIES_MAX: how many copies one open file may have
	 * queued at a time. If it has that many, the call waits, interruptibly,
	 * until one of them has ended.
	 */
	DRM_MGPU_PARAM_COPIES_MAX = 7,
	/** @DRM_MGPU_PARAM_VM_MAX: how many VMs a file may have at a time. */
	DRM_MGPU_PARAM_VM_MAX = 8,
	/**
	 * @DRM_MGPU_PARAM_VM_SIZE: how many bytes of virtual addresses a VM
	 * has. The number of its page tables is limited, too: they are enough
	 * for 2 GiB of mappings without gaps, or for 1024 mappings that are far
	 * from each other.
	 */
	DRM_MGPU_PARAM_VM_SIZE = 9,
	/**
	 * @DRM_MGPU_PARAM_EXEC_OPS_MAX: how many operations a job has at most.
	 */
	DRM_MGPU_PARAM_EXEC_OPS_MAX = 10,
	/**
	 * @DRM_MGPU_PARAM_EXEC_SIZE_MAX: the largest size of an operation, in
	 * bytes.
	 */
	DRM_MGPU_PARAM_EXEC_SIZE_MAX = 11,
	/**
	 * @DRM_MGPU_PARAM_EXEC_JOBS_MAX: how many jobs one open file may have
	 * queued at a time; see DRM_MGPU_PARAM_COPIES_MAX.
	 */
	DRM_MGPU_PARAM_EXEC_JOBS_MAX = 12,
	/**
	 * @DRM_MGPU_PARAM_HANGS_MAX: how many jobs, or copies, of an open file
	 * may hang until it can queue no more.
	 */
	DRM_MGPU_PARAM_HANGS_MAX = 13,
};

/**
 * struct drm_mgpu_getparam - argument of DRM_IOCTL_MGPU_GETPARAM
 */
struct drm_mgpu_getparam {
	/** @param: in, one of enum drm_mgpu_param; -EINVAL if unknown. */
	__u32 param;
	/** @pad: must be zero. */
	__u32 pad;
	/** @value: out, must be zero on input. */
	__u64 value;
};

/**
 * DRM_MGPU_GEM_PLACE_VRAM - the object may be placed in VRAM.
 *
 * Without DRM_MGPU_GEM_PLACE_SYSTEM the object is in VRAM for as long as it
 * lives, and an importer that cannot reach it there is refused with
 * -EOPNOTSUPP. The object is never evicted to make room for others, so it is
 * charged as a pin, to the file that has created it, for as long as it lives.
 * It is not charged if the caller has CAP_IPC_LOCK.
 */
#define DRM_MGPU_GEM_PLACE_VRAM	(1 << 0)
/**
 * DRM_MGPU_GEM_PLACE_SYSTEM - the object may be placed in system memory.
 *
 * Without DRM_MGPU_GEM_PLACE_VRAM the object is never placed in VRAM. With it
 * the object begins in VRAM if there is room, is moved to system memory when
 * there is not enough VRAM for all objects, and is moved back when a peer uses
 * it again.
 */
#define DRM_MGPU_GEM_PLACE_SYSTEM	(1 << 1)

/**
 * DRM_MGPU_GEM_EXPORT_VRAM_OR_FAIL - importers get the object in VRAM or not at
 * all.
 *
 * The flag needs DRM_MGPU_GEM_PLACE_VRAM. With DRM_MGPU_GEM_PLACE_SYSTEM the
 * object may still be moved to system memory when there is not enough VRAM for
 * all objects. An importer that cannot reach VRAM is refused with -EOPNOTSUPP.
 * When an importer that can reach VRAM maps or pins the object, the object is
 * moved back to VRAM. That fails with -ENOSPC if there is no room, and with
 * -EOPNOTSUPP if the kernel has mapped the object in system memory for its own
 * use. An object without DRM_MGPU_GEM_PLACE_SYSTEM is exported like this
 * whether the flag is set or not.
 */
#define DRM_MGPU_GEM_EXPORT_VRAM_OR_FAIL	(1 << 0)

/**
 * struct drm_mgpu_gem_create - argument of DRM_IOCTL_MGPU_GEM_CREATE
 *
 * Creates an object that reads as zeroes. Returns -EINVAL for a size of 0, for
 * a placement or a flag that is unknown, and without a placement: there is no
 * default. Returns -ENOENT for a VM that is unknown, -ENOSPC when no placement
 * has room for the object, -EDQUOT if it would be charged and no more VRAM may
 * be pinned, -EINTR if a signal arrived, and -EIO or -ENODEV if the device does
 * not work any more.
 *
 * All objects that are private to a VM share one reservation, which makes
 * DRM_IOCTL_MGPU_EXEC faster. An export of a private object fails with -EPERM.
 * Other VMs of the file may map it, too, and its lifetime does not depend on
 * that of the VM.
 */
struct drm_mgpu_gem_create {
	/** @size: in, at least 1; out, rounded up to a page. */
	__u64 size;
	/** @placements: in, at least one of DRM_MGPU_GEM_PLACE_*. */
	__u32 placements;
	/** @flags: in, DRM_MGPU_GEM_EXPORT_VRAM_OR_FAIL or 0. */
	__u32 flags;
	/** @handle: out, must be zero on input. */
	__u32 handle;
	/** @vm: in, the VM that the object is private to, or 0. */
	__u32 vm;
};

/**
 * struct drm_mgpu_gem_mmap_offset - argument of
 * DRM_IOCTL_MGPU_GEM_MMAP_OFFSET
 */
struct drm_mgpu_gem_mmap_offset {
	/** @handle: in, -ENOENT if unknown. */
	__u32 handle;
	/** @pad: must be zero. */
	__u32 pad;
	/** @offset: out, for mmap() on this DRM fd; must be zero on input. */
	__u64 offset;
};

/**
 * enum drm_mgpu_placement - where an object is
 */
enum drm_mgpu_placement {
	/** @DRM_MGPU_PLACEMENT_NONE: it has no memory yet. */
	DRM_MGPU_PLACEMENT_NONE = 0,
	/** @DRM_MGPU_PLACEMENT_VRAM: in VRAM. */
	DRM_MGPU_PLACEMENT_VRAM = 1,
	/** @DRM_MGPU_PLACEMENT_SYSTEM: in system memory. */
	DRM_MGPU_PLACEMENT_SYSTEM = 2,
	/**
	 * @DRM_MGPU_PLACEMENT_IMPORTED: it is imported; the driver of the
	 * exporting device decides where its memory is.
	 */
	DRM_MGPU_PLACEMENT_IMPORTED = 3,
};

/**
 * struct drm_mgpu_gem_info - argument of DRM_IOCTL_MGPU_GEM_INFO
 *
 * Returns where an object is at the moment. It may be elsewhere by the time the
 * caller reads it, unless it is pinned.
 */
struct drm_mgpu_gem_info {
	/** @handle: in, -ENOENT if unknown. */
	__u32 handle;
	/**
	 * @placement: out, one of enum drm_mgpu_placement. This and what
	 * follows must be zero on input.
	 */
	__u32 placement;
	/** @size: out, in bytes. */
	__u64 size;
	/**
	 * @placements: out, the DRM_MGPU_GEM_PLACE_* that it was created with;
	 * 0 if it is imported.
	 */
	__u32 placements;
	/** @flags: out, the flags that it was created with. */
	__u32 flags;
	/**
	 * @pinned: out, 1 if an importer or the kernel has pinned it, else 0.
	 */
	__u32 pinned;
	/** @pad: must be zero. */
	__u32 pad;
	/**
	 * @id: out, the number of the object in debugfs and in tracepoints. No
	 * other object of the device has it, or had it before.
	 */
	__u64 id;
};

/**
 * struct drm_mgpu_gem_copy - argument of DRM_IOCTL_MGPU_GEM_COPY
 *
 * Copies bytes between objects, wherever they are; one of them may be imported,
 * or both. The call queues the copy and returns. The copy begins after the
 * fences in @in_syncs, after the copies that the same open file has queued
 * before, and after the implicit fences of both objects: writes to the source,
 * and all accesses to the destination. Jobs of DRM_IOCTL_MGPU_EXEC have no
 * implicit fences. The call itself does not wait for these fences, but for work
 * at the old place of an imported buffer that has moved and is mapped in a VM.
 * The fence of the copy becomes an implicit fence of both objects, and is put
 * into each entry of @out_syncs, in their order. It signals with an error if
 * the engine could not do the copy, and with -ECANCELED if the file is closed,
 * the device goes away, or too many copies of the file have hung, before the
 * copy has begun.
 *
 * A call that fails has queued no copy, and has put no fence anywhere.
 *
 * Returns -EINVAL for a size of 0, for a part that is not inside of its object,
 * for parts of one object that overlap, and for more than
 * DRM_MGPU_PARAM_SYNC_MAX entries; -ENOENT for an unknown handle; -EIO for an
 * object that has lost its content; -EAGAIN if the buffer of another device,
 * which has moved, was given more work during the wait for that at its old
 * place, so that the call has to be repeated; -ECANCELED if copies of the open
 * file have hung, see DRM_MGPU_PARAM_COPY_HANGS; -EINTR if a signal arrived;
 * -ENODEV if the device or its driver is gone, or those of a device that
 * exports one of the buffers; other errors of the exporter, such as -EOPNOTSUPP
 * and -ENOSPC; and for @in_syncs and @out_syncs the errors of struct
 * drm_sync_entry.
 */
struct drm_mgpu_gem_copy {
	/** @src: in, handle of the object that is read. */
	__u32 src;
	/** @dst: in, handle of the object that is written. */
	__u32 dst;
	/** @src_offset: in, first byte that is read. */
	__u64 src_offset;
	/** @dst_offset: in, first byte that is written. */
	__u64 dst_offset;
	/** @size: in, how many bytes; any number but 0. */
	__u64 size;
	/** @in_syncs: in, user pointer to struct drm_sync_entry to depend on. */
	__u64 in_syncs;
	/** @out_syncs: in, user pointer to struct drm_sync_entry to signal. */
	__u64 out_syncs;
	/**
	 * @in_count: in, entries of @in_syncs, which is ignored if this is 0.
	 */
	__u32 in_count;
	/**
	 * @out_count: in, entries of @out_syncs, which is ignored if this is 0.
	 */
	__u32 out_count;
	/**
	 * @sync_size: in, bytes from one entry of either array to the next;
	 * ignored if both are empty.
	 */
	__u32 sync_size;
	/** @flags: must be zero. */
	__u32 flags;
};

/**
 * struct drm_mgpu_vm_create - argument of DRM_IOCTL_MGPU_VM_CREATE
 *
 * Creates a VM: a virtual address space of the compute engine, in which nothing
 * is mapped. Returns -ENOSPC if the file has DRM_MGPU_PARAM_VM_MAX of them.
 */
struct drm_mgpu_vm_create {
	/** @flags: must be zero. */
	__u32 flags;
	/** @vm: out, its number in this file, not 0; must be zero on input. */
	__u32 vm;
};

/**
 * struct drm_mgpu_vm_destroy - argument of DRM_IOCTL_MGPU_VM_DESTROY
 *
 * Destroys a VM. The jobs of the VM that are queued are done before its
 * mappings are removed. All VMs of a file are destroyed when the file is
 * closed, which cancels jobs that have not begun.
 */
struct drm_mgpu_vm_destroy {
	/** @vm: in, -ENOENT if unknown. */
	__u32 vm;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * enum drm_mgpu_bind_op - what DRM_IOCTL_MGPU_VM_BIND does
 */
enum drm_mgpu_bind_op {
	/**
	 * @DRM_MGPU_BIND_MAP: maps a part of an object, in place of what was
	 * mapped at the addresses.
	 */
	DRM_MGPU_BIND_MAP = 0,
	/**
	 * @DRM_MGPU_BIND_UNMAP: unmaps the addresses, whether something is
	 * mapped there or not. A part of a mapping may be unmapped.
	 */
	DRM_MGPU_BIND_UNMAP = 1,
};

/**
 * struct drm_mgpu_vm_bind - argument of DRM_IOCTL_MGPU_VM_BIND
 *
 * Changes the mappings of a VM. The change is done when the call returns, and
 * applies to all jobs that are queued later. If the change unmaps or replaces a
 * mapping, the call waits, interruptibly, for the jobs of the VM that were
 * queued before, and other calls that queue jobs of the VM may wait until it is
 * done; otherwise it does not.
 *
 * A mapping keeps its virtual addresses when its object moves: the next
 * DRM_IOCTL_MGPU_EXEC moves an object that has left VRAM back, or maps it in
 * system memory. An imported buffer is mapped where its exporter has it.
 *
 * Returns -EINVAL for addresses, an offset or a size that are not multiples of
 * a page, for a size of 0, for addresses beyond DRM_MGPU_PARAM_VM_SIZE, for a
 * part that is not inside of its object, and for an operation that is unknown;
 * -ENOENT for an unknown VM or handle; -ENOSPC if it would need too many page
 * tables; -EINTR if a signal arrived; and -ENODEV if the device or its driver
 * is gone.
 */
struct drm_mgpu_vm_bind {
	/** @vm: in, the VM. */
	__u32 vm;
	/** @op: in, one of enum drm_mgpu_bind_op. */
	__u32 op;
	/** @handle: in, the object; zero for DRM_MGPU_BIND_UNMAP. */
	__u32 handle;
	/** @flags: must be zero. */
	__u32 flags;
	/** @address: in, the first virtual address. */
	__u64 address;
	/** @offset: in, offset in the object; zero for DRM_MGPU_BIND_UNMAP. */
	__u64 offset;
	/** @size: in, how many bytes. */
	__u64 size;
};

/**
 * enum drm_mgpu_exec_code - an operation of the compute engine
 */
enum drm_mgpu_exec_code {
	/**
	 * @DRM_MGPU_EXEC_FILL: fills @size bytes at @dst with the 32 bits of
	 * @value.
	 */
	DRM_MGPU_EXEC_FILL = 0,
	/**
	 * @DRM_MGPU_EXEC_COPY: copies @size bytes from @src to @dst. The result
	 * is undefined if the ranges overlap.
	 */
	DRM_MGPU_EXEC_COPY = 1,
	/**
	 * @DRM_MGPU_EXEC_CHECKSUM: adds up the words of 32 bits in @size bytes
	 * at @src, and writes the sum, of 64 bits, to @dst.
	 */
	DRM_MGPU_EXEC_CHECKSUM = 2,
	/**
	 * @DRM_MGPU_EXEC_ATOMIC_ADD: adds @value to the 64 bits at @dst,
	 * atomically if these are in VRAM of this device. Elsewhere it is a
	 * read and a write, and others may write these bits in between.
	 */
	DRM_MGPU_EXEC_ATOMIC_ADD = 3,
};

/**
 * struct drm_mgpu_exec_op - an entry of the array of struct drm_mgpu_exec
 *
 * Fields that the operation does not use must be zero.
 */
struct drm_mgpu_exec_op {
	/** @code: in, one of enum drm_mgpu_exec_code. */
	__u32 code;
	/** @pad: must be zero. */
	__u32 pad;
	/** @src: in, virtual address of the bytes that are read. */
	__u64 src;
	/**
	 * @dst: in, virtual address of the bytes that are written; a multiple
	 * of 8 for DRM_MGPU_EXEC_CHECKSUM and DRM_MGPU_EXEC_ATOMIC_ADD.
	 */
	__u64 dst;
	/**
	 * @size: in, bytes, from 1 to DRM_MGPU_PARAM_EXEC_SIZE_MAX; a multiple
	 * of 4 except for DRM_MGPU_EXEC_COPY.
	 */
	__u64 size;
	/** @value: in, a pattern of 32 bits, or the number that is added. */
	__u64 value;
};

/**
 * DRM_MGPU_EXEC_OP_SIZE_VER0 - size of the first version of struct
 * drm_mgpu_exec_op.
 */
#define DRM_MGPU_EXEC_OP_SIZE_VER0	40

/**
 * struct drm_mgpu_exec - argument of DRM_IOCTL_MGPU_EXEC
 *
 * Queues a job of the compute engine: operations on virtual addresses of a VM,
 * which are done in their order, after the jobs that the open file has queued
 * before. The call does not wait for the job. It waits, interruptibly, for
 * moves that bring objects to where the engine reaches them, if jobs of the VM
 * are under way, and for work at the old place of an imported buffer that has
 * moved.
 *
 * The call validates all objects that are mapped in the VM, and they stay where
 * the engine reaches them until the job is done. The job depends on the fences
 * in @in_syncs, and its fence is put into each entry of @out_syncs, in their
 * order. It takes no part in implicit synchronization: it waits for no access
 * of others to the mapped objects, and none waits for it. To take part, a
 * client gets a sync file of the implicit fences of a dma-buf by
 * DMA_BUF_IOCTL_EXPORT_SYNC_FILE, puts it into a sync object, and adds the
 * fence of the job by DMA_BUF_IOCTL_IMPORT_SYNC_FILE.
 *
 * A job without operations uses no object. Its fence signals after @in_syncs
 * and after the jobs that the open file has queued before.
 *
 * The fence signals with -EIO if nothing is mapped at an address that the job
 * uses, and with -ETIMEDOUT if the job hangs; in both cases some operations may
 * be done, in part or as a whole, and DRM_IOCTL_MGPU_VM_FAILURES tells more. It
 * signals with -ECANCELED if the file is closed, the device goes away, or too
 * many jobs of the file have hung, before the job has begun.
 *
 * A call that fails has queued no job, and has put no fence anywhere.
 *
 * Later versions may append fields to struct drm_mgpu_exec_op. If the entries
 * of the caller are longer than those that the kernel knows, the bytes that the
 * kernel does not know must be zero.
 *
 * Returns -EINVAL for an operation that is unknown or has a field that is not
 * allowed, for more operations than DRM_MGPU_PARAM_EXEC_OPS_MAX, for an op_size
 * that is below DRM_MGPU_EXEC_OP_SIZE_VER0, above 4096, or not a multiple of 8,
 * for more than DRM_MGPU_PARAM_SYNC_MAX entries of @in_syncs or @out_syncs, and
 * for a mapped buffer of another device that is not made of whole pages;
 * -E2BIG for an entry that is not zero beyond what the kernel knows; -ENOENT
 * for an unknown VM; -ENOSPC if there is not enough memory for all mapped
 * objects at the same time; -EIO if a mapped object has lost its content, or if
 * the device has failed; -EAGAIN if another task has waited for the work on
 * which the job depends, so that the call has to be repeated; -ECANCELED if
 * jobs of the open file have hung, see DRM_MGPU_PARAM_JOB_HANGS; -EINTR if a
 * signal arrived; -ENODEV if the device or its driver is gone, or those of a
 * device that exports a mapped buffer; other errors of the exporter, such as
 * -EOPNOTSUPP; and for @in_syncs and @out_syncs the errors of struct
 * drm_sync_entry.
 */
struct drm_mgpu_exec {
	/** @vm: in, the VM. */
	__u32 vm;
	/** @flags: must be zero. */
	__u32 flags;
	/**
	 * @ops: in, user pointer to struct drm_mgpu_exec_op; ignored as
	 * @op_size if @op_count is 0.
	 */
	__u64 ops;
	/** @in_syncs: in, user pointer to struct drm_sync_entry to depend on. */
	__u64 in_syncs;
	/** @out_syncs: in, user pointer to struct drm_sync_entry to signal. */
	__u64 out_syncs;
	/** @op_count: in, entries of @ops. */
	__u32 op_count;
	/** @op_size: in, bytes from one entry of @ops to the next. */
	__u32 op_size;
	/**
	 * @in_count: in, entries of @in_syncs, which is ignored if this is 0.
	 */
	__u32 in_count;
	/**
	 * @out_count: in, entries of @out_syncs, which is ignored if this is 0.
	 */
	__u32 out_count;
	/**
	 * @sync_size: in, bytes from one entry of either array of fences to the
	 * next; ignored if both are empty.
	 */
	__u32 sync_size;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * enum drm_mgpu_access - an access of an engine to memory
 */
enum drm_mgpu_access {
	/** @DRM_MGPU_ACCESS_READ: a read. */
	DRM_MGPU_ACCESS_READ = 0,
	/** @DRM_MGPU_ACCESS_WRITE: a write. */
	DRM_MGPU_ACCESS_WRITE = 1,
};

/**
 * struct drm_mgpu_vm_failures - argument of DRM_IOCTL_MGPU_VM_FAILURES
 *
 * Returns which jobs of a VM have failed by themselves: those that have faulted,
 * whose fences have signalled with -EIO, and those that have hung, -ETIMEDOUT.
 * Other jobs may have ended with -EIO because the device was reset.
 */
struct drm_mgpu_vm_failures {
	/** @vm: in, -ENOENT if unknown. */
	__u32 vm;
	/**
	 * @access: out, one of enum drm_mgpu_access: that of the last fault.
	 * This and what follows must be zero on input.
	 */
	__u32 access;
	/**
	 * @address: out, the virtual address of the last fault; 0 if that was
	 * not because of the address.
	 */
	__u64 address;
	/** @faults: out, how many jobs have faulted. */
	__u64 faults;
	/** @hangs: out, how many jobs have hung. */
	__u64 hangs;
};

/* An enum, so that Rust's bindgen resolves the numbers. */
enum {
	DRM_IOCTL_MGPU_GETPARAM =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_GETPARAM,
			 struct drm_mgpu_getparam),
	DRM_IOCTL_MGPU_GEM_CREATE =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_GEM_CREATE,
			 struct drm_mgpu_gem_create),
	DRM_IOCTL_MGPU_GEM_MMAP_OFFSET =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_GEM_MMAP_OFFSET,
			 struct drm_mgpu_gem_mmap_offset),
	DRM_IOCTL_MGPU_PEER_ATTACHMENTS =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_PEER_ATTACHMENTS,
			 struct drm_peer_attachments),
	DRM_IOCTL_MGPU_GEM_INFO =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_GEM_INFO,
			 struct drm_mgpu_gem_info),
	DRM_IOCTL_MGPU_PEER_IMPORT_INFO =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_PEER_IMPORT_INFO,
			 struct drm_peer_import_info),
	/*
	 * The direction is IOW, because a write back to the argument could fail
	 * after the copy was queued.
	 */
	DRM_IOCTL_MGPU_GEM_COPY =
		DRM_IOW(DRM_COMMAND_BASE + DRM_MGPU_GEM_COPY,
			struct drm_mgpu_gem_copy),
	DRM_IOCTL_MGPU_PEER_QUERY =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_PEER_QUERY,
			 struct drm_peer_query),
	DRM_IOCTL_MGPU_VM_CREATE =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_VM_CREATE,
			 struct drm_mgpu_vm_create),
	DRM_IOCTL_MGPU_VM_DESTROY =
		DRM_IOW(DRM_COMMAND_BASE + DRM_MGPU_VM_DESTROY,
			struct drm_mgpu_vm_destroy),
	DRM_IOCTL_MGPU_VM_BIND =
		DRM_IOW(DRM_COMMAND_BASE + DRM_MGPU_VM_BIND,
			struct drm_mgpu_vm_bind),
	DRM_IOCTL_MGPU_EXEC =
		DRM_IOW(DRM_COMMAND_BASE + DRM_MGPU_EXEC,
			struct drm_mgpu_exec),
	DRM_IOCTL_MGPU_VM_FAILURES =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_VM_FAILURES,
			 struct drm_mgpu_vm_failures),
	DRM_IOCTL_MGPU_PEER_FLUSH =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_MGPU_PEER_FLUSH,
			 struct drm_peer_flush),
};

#if defined(__cplusplus)
}
#endif

#endif /* _UAPI_MGPU_DRM_H_ */
