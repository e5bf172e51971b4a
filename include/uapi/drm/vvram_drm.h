/* SPDX-License-Identifier: MIT */
/*
 * uAPI of the vvram driver: VRAM behind a PCI BAR, exported peer to peer.
 *
 * Every structure has the same layout for 32- and 64-bit callers. Fields named
 * pad and flag bits that are not listed here must be zero, or the call returns
 * -EINVAL. Sizes and offsets are in bytes. The ioctls DRM_IOCTL_VVRAM_PEER_*
 * are those of drm_peer.h.
 */
#ifndef _UAPI_VVRAM_DRM_H_
#define _UAPI_VVRAM_DRM_H_

#include "drm.h"
#include "drm_peer.h"
#include "drm_sync_entry.h"

#if defined(__cplusplus)
extern "C" {
#endif

#define DRM_VVRAM_GETPARAM		0x00
#define DRM_VVRAM_GEM_CREATE		0x01
#define DRM_VVRAM_GEM_MMAP_OFFSET	0x02
#define DRM_VVRAM_PEER_ATTACHMENTS	0x03
#define DRM_VVRAM_GEM_INFO		0x04
#define DRM_VVRAM_PEER_IMPORT_INFO	0x05
#define DRM_VVRAM_GEM_COPY		0x06
#define DRM_VVRAM_PEER_QUERY		0x07
#define DRM_VVRAM_VM_BIND		0x08
#define DRM_VVRAM_VM_READ		0x09
#define DRM_VVRAM_SVM_MIGRATE		0x0a
#define DRM_VVRAM_SVM_EVICT		0x0b
#define DRM_VVRAM_PEER_FLUSH		0x0c

/**
 * enum drm_vvram_param - parameters that DRM_IOCTL_VVRAM_GETPARAM returns
 */
enum drm_vvram_param {
	/** @DRM_VVRAM_PARAM_VRAM_SIZE: all VRAM of the device, in bytes. */
	DRM_VVRAM_PARAM_VRAM_SIZE = 0,
	/**
	 * @DRM_VVRAM_PARAM_VRAM_CPU_VISIBLE_SIZE: the part of VRAM that the BAR
	 * shows to the CPU and to peers, in bytes.
	 */
	DRM_VVRAM_PARAM_VRAM_CPU_VISIBLE_SIZE = 1,
	/**
	 * @DRM_VVRAM_PARAM_PAGE_SIZE: the unit that sizes of objects are
	 * rounded up to, in bytes.
	 */
	DRM_VVRAM_PARAM_PAGE_SIZE = 2,
	/**
	 * @DRM_VVRAM_PARAM_VRAM_PIN_LIMIT: how much VRAM may be pinned, in
	 * bytes.
	 */
	DRM_VVRAM_PARAM_VRAM_PIN_LIMIT = 3,
	/**
	 * @DRM_VVRAM_PARAM_DIRECT_IO_SIZE: the part of VRAM that objects with
	 * DRM_VVRAM_GEM_DIRECT_IO can be mapped in, in bytes; 0 if the BAR has
	 * no struct pages.
	 */
	DRM_VVRAM_PARAM_DIRECT_IO_SIZE = 4,
	/**
	 * @DRM_VVRAM_PARAM_SYNC_MAX: how many fences a call waits for at most,
	 * and how many it signals.
	 */
	DRM_VVRAM_PARAM_SYNC_MAX = 5,
	/**
	 * @DRM_VVRAM_PARAM_COPIES_MAX: how many copies one open file may have
	 * queued at a time. If it has that many, the call waits, interruptibly,
	 * until one of them has ended.
	 */
	DRM_VVRAM_PARAM_COPIES_MAX = 6,
	/**
	 * @DRM_VVRAM_PARAM_VM_SIZE: size of the address space of an open file,
	 * in bytes. It begins at address 0, and nothing is mapped in it at
	 * first.
	 */
	DRM_VVRAM_PARAM_VM_SIZE = 7,
};

/**
 * struct drm_vvram_getparam - argument of DRM_IOCTL_VVRAM_GETPARAM
 */
struct drm_vvram_getparam {
	/** @param: in, one of enum drm_vvram_param; -EINVAL if unknown. */
	__u32 param;
	/** @pad: must be zero. */
	__u32 pad;
	/** @value: out, must be zero on input. */
	__u64 value;
};

/**
 * DRM_VVRAM_GEM_PLACE_VRAM - the object may be placed in VRAM.
 *
 * Without DRM_VVRAM_GEM_PLACE_SYSTEM the object is in VRAM for as long as it
 * lives, and an importer that cannot reach it there is refused with
 * -EOPNOTSUPP. The object is never evicted to make room for others, so it is
 * charged as a pin, to the file that has created it, for as long as it lives.
 * It is not charged if the caller has CAP_IPC_LOCK.
 */
#define DRM_VVRAM_GEM_PLACE_VRAM	(1 << 0)
/**
 * DRM_VVRAM_GEM_PLACE_SYSTEM - the object may be placed in system memory.
 *
 * Without DRM_VVRAM_GEM_PLACE_VRAM the object is never placed in VRAM. With it
 * the object begins in VRAM if there is room, is moved to system memory when
 * there is not enough VRAM for all objects, and is moved back when a peer uses
 * it again.
 */
#define DRM_VVRAM_GEM_PLACE_SYSTEM	(1 << 1)

/**
 * DRM_VVRAM_GEM_EXPORT_VRAM_OR_FAIL - importers get the object in VRAM or not
 * at all.
 *
 * The flag needs DRM_VVRAM_GEM_PLACE_VRAM. With DRM_VVRAM_GEM_PLACE_SYSTEM the
 * object may still be moved to system memory when there is not enough VRAM for
 * all objects. An importer that cannot reach VRAM is refused with -EOPNOTSUPP.
 * When an importer that can reach VRAM maps or pins the object, the object is
 * moved back to VRAM. That fails with -ENOSPC if there is no room, and with
 * -EOPNOTSUPP if the kernel has mapped the object in system memory for its own
 * use. An object without DRM_VVRAM_GEM_PLACE_SYSTEM is exported like this
 * whether the flag is set or not.
 */
#define DRM_VVRAM_GEM_EXPORT_VRAM_OR_FAIL	(1 << 0)

/**
 * DRM_VVRAM_GEM_DIRECT_IO - a mapping of the object can be used for direct I/O.
 *
 * If the buffer of a read() or write() of a file with O_DIRECT is in a mapping
 * of this DRM fd, the disk accesses VRAM without a copy, provided that the disk
 * and its driver can do that and that there is a route.
 *
 * The flag needs DRM_VVRAM_GEM_PLACE_VRAM. An mmap() moves the object to VRAM,
 * pins it there, and charges that to this file like the pin of an importer. The
 * pin ends after the last munmap(), when the I/O that is under way has ended.
 * The mmap() must be shared, else it fails with -EINVAL. It fails with -EDQUOT
 * if no more VRAM may be pinned, with -ENOSPC if there is no room in VRAM, and
 * with -EBUSY if the object is pinned where it has no struct pages. Mappings of
 * a dma-buf of the object are not affected by the flag.
 */
#define DRM_VVRAM_GEM_DIRECT_IO		(1 << 1)

/**
 * struct drm_vvram_gem_create - argument of DRM_IOCTL_VVRAM_GEM_CREATE
 *
 * Creates an object that reads as zeroes. Returns -EINVAL for a size of 0, for
 * a placement or a flag that is unknown, and without a placement: there is no
 * default, because the placement decides which importers are refused and
 * whether the object moves, and both are for the caller to choose. Returns
 * -ENOSPC when no placement has room for the object, -EDQUOT if it would be
 * charged and no more VRAM may be pinned, -EOPNOTSUPP for
 * DRM_VVRAM_GEM_DIRECT_IO if the BAR has no struct pages, and -EINTR if a
 * signal arrived.
 */
struct drm_vvram_gem_create {
	/** @size: in, at least 1; out, rounded up to a page. */
	__u64 size;
	/** @placements: in, at least one of DRM_VVRAM_GEM_PLACE_*. */
	__u32 placements;
	/**
	 * @flags: in, DRM_VVRAM_GEM_EXPORT_VRAM_OR_FAIL and
	 * DRM_VVRAM_GEM_DIRECT_IO, or 0.
	 */
	__u32 flags;
	/** @handle: out, must be zero on input. */
	__u32 handle;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * struct drm_vvram_gem_mmap_offset - argument of
 * DRM_IOCTL_VVRAM_GEM_MMAP_OFFSET
 */
struct drm_vvram_gem_mmap_offset {
	/** @handle: in, -ENOENT if unknown. */
	__u32 handle;
	/** @pad: must be zero. */
	__u32 pad;
	/** @offset: out, for mmap() on this DRM fd; must be zero on input. */
	__u64 offset;
};

/**
 * enum drm_vvram_placement - where an object is
 */
enum drm_vvram_placement {
	/** @DRM_VVRAM_PLACEMENT_NONE: it has no memory yet. */
	DRM_VVRAM_PLACEMENT_NONE = 0,
	/** @DRM_VVRAM_PLACEMENT_VRAM: in VRAM. */
	DRM_VVRAM_PLACEMENT_VRAM = 1,
	/** @DRM_VVRAM_PLACEMENT_SYSTEM: in system memory. */
	DRM_VVRAM_PLACEMENT_SYSTEM = 2,
	/**
	 * @DRM_VVRAM_PLACEMENT_IMPORTED: it is imported; the driver of the
	 * exporting device decides where its memory is.
	 */
	DRM_VVRAM_PLACEMENT_IMPORTED = 3,
};

/**
 * struct drm_vvram_gem_info - argument of DRM_IOCTL_VVRAM_GEM_INFO
 *
 * Returns where an object is at the moment. It may be elsewhere by the time the
 * caller reads it, unless it is pinned.
 */
struct drm_vvram_gem_info {
	/** @handle: in, -ENOENT if unknown. */
	__u32 handle;
	/**
	 * @placement: out, one of enum drm_vvram_placement. This and what
	 * follows must be zero on input.
	 */
	__u32 placement;
	/** @size: out, in bytes. */
	__u64 size;
	/**
	 * @placements: out, the DRM_VVRAM_GEM_PLACE_* that it was created with;
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
 * struct drm_vvram_gem_copy - argument of DRM_IOCTL_VVRAM_GEM_COPY
 *
 * Copies bytes between objects, wherever they are; one of them may be imported,
 * or both. The call queues the copy and returns. The copy begins after the
 * fences in @in_syncs, after the copies that the same open file has queued
 * before, and after the implicit fences of both objects: writes to the source,
 * and all accesses to the destination. The call itself does not wait for these
 * fences. The fence of the copy becomes an implicit fence of both objects, and
 * is put into each entry of @out_syncs, in their order. If the file is closed,
 * or the device goes away, before the copy has begun, its fence signals with
 * -ECANCELED. A copy to the buffer of another device is complete when the call
 * returns, so the call waits for all of these fences then, and it waits for the
 * writes to the buffer of another device from which it copies.
 *
 * A call that fails has queued no copy, and has put no fence anywhere.
 *
 * Returns -EINVAL for a size of 0, for a part that is not inside of its object,
 * for parts of one object that overlap, for more than DRM_VVRAM_PARAM_SYNC_MAX
 * entries, and for a buffer of another device that the CPU cannot access;
 * -ENOENT for an unknown handle; -EAGAIN if the buffer of another device, which
 * has moved and is mapped by struct drm_vvram_vm_bind, was given more work
 * during the wait for that at its old place, so that the call has to be
 * repeated; -EINTR if a signal arrived; -ENODEV if the driver of the device is
 * gone, or that of a device that exports one of the buffers; other errors of
 * the exporter, such as -EOPNOTSUPP and -ENOSPC; and for @in_syncs and
 * @out_syncs the errors of struct drm_sync_entry.
 */
struct drm_vvram_gem_copy {
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
	/** @in_syncs: in, user pointer to struct drm_sync_entry to wait for. */
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
 * enum drm_vvram_bind_op - what DRM_IOCTL_VVRAM_VM_BIND does
 */
enum drm_vvram_bind_op {
	/**
	 * @DRM_VVRAM_BIND_MAP: maps a part of an object; -EEXIST if something
	 * is mapped at one of the addresses.
	 */
	DRM_VVRAM_BIND_MAP = 0,
	/**
	 * @DRM_VVRAM_BIND_UNMAP: unmaps what one earlier call has mapped;
	 * -ENOENT unless the addresses are exactly those of that call.
	 */
	DRM_VVRAM_BIND_UNMAP = 1,
};

/**
 * struct drm_vvram_vm_bind - argument of DRM_IOCTL_VVRAM_VM_BIND
 *
 * Changes the mappings in the address space of the file. A mapping lasts until
 * it is unmapped or the file is closed, and holds a reference to its object,
 * also when the handle of that is closed. The object may move; its addresses
 * stay the same.
 *
 * The address space keeps mappings as they were made: it does not split one, so
 * that no mapping is replaced, and none is unmapped in part, as by
 * DRM_IOCTL_MGPU_VM_BIND.
 *
 * Returns -EINVAL for addresses, an offset or a size that are not multiples of
 * a page, for a size of 0, for addresses beyond DRM_VVRAM_PARAM_VM_SIZE, for a
 * part that is not inside of its object, and for an operation that is unknown;
 * -ENOENT for an unknown handle; and -EAGAIN, -EINTR and the errors of the
 * exporter as struct drm_peer_import_info.
 */
struct drm_vvram_vm_bind {
	/**
	 * @pad: must be zero. Each open file has one address space; mgpu has
	 * the number of a VM here.
	 */
	__u32 pad;
	/** @op: in, one of enum drm_vvram_bind_op. */
	__u32 op;
	/** @handle: in, the object; zero for DRM_VVRAM_BIND_UNMAP. */
	__u32 handle;
	/** @flags: must be zero. */
	__u32 flags;
	/** @address: in, the first address. */
	__u64 address;
	/** @offset: in, offset in the object; zero for DRM_VVRAM_BIND_UNMAP. */
	__u64 offset;
	/** @size: in, how many bytes. */
	__u64 size;
};

/**
 * DRM_VVRAM_VM_READ_AS_IS - read through the page table as it is.
 *
 * Without this flag the call first updates the entries that it reads through,
 * as a driver does before a job of a GPU. With it the call returns -EFAULT for
 * an object that has moved since its entries were filled.
 */
#define DRM_VVRAM_VM_READ_AS_IS			(1 << 0)

/**
 * struct drm_vvram_vm_read - argument of DRM_IOCTL_VVRAM_VM_READ
 *
 * Reads bytes by their addresses in the address space of the file. This is for
 * tests, which check with it that page tables follow objects.
 *
 * Returns -EINVAL for a size of 0, for addresses that are not inside of the
 * address space, and for an unknown flag; -EFAULT if nothing is mapped at one of
 * the addresses, or if @data cannot be written to; -EOPNOTSUPP if the buffer of
 * another device is mapped there, -EAGAIN if that has moved during the wait for
 * its moves, and -EINTR if a signal arrived. A call that fails may have written
 * some bytes.
 */
struct drm_vvram_vm_read {
	/** @address: in, the first address. */
	__u64 address;
	/** @size: in, how many bytes. */
	__u64 size;
	/** @data: in, user pointer to @size bytes, which are written. */
	__u64 data;
	/** @flags: in, DRM_VVRAM_VM_READ_*. */
	__u32 flags;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * struct drm_vvram_svm_range - argument of DRM_IOCTL_VVRAM_SVM_MIGRATE and
 * DRM_IOCTL_VVRAM_SVM_EVICT
 *
 * A range of the addresses of the calling process, made of whole pages.
 *
 * DRM_IOCTL_VVRAM_SVM_MIGRATE migrates anonymous memory to VRAM. The process
 * keeps its addresses. Pages are migrated in aligned blocks, whose size is a
 * power of two of at most 2 MiB; when the CPU accesses a page, its block moves
 * back to system memory, and the other blocks stay. The memory also moves back
 * when VRAM is needed for other objects or processes, when the system is
 * suspended, and when the device is reset or goes away. While it is in VRAM it
 * is still accounted for as memory of the process, and keeps the device from
 * being suspended at runtime.
 *
 * A peer that has registered the addresses accesses the memory in VRAM if it
 * can reach it there, and if the BAR shows it; otherwise the memory moves back
 * first.
 *
 * Objects and memory of processes share VRAM. If both together need more than
 * there is, each of them may have half of it, and also what the other one does
 * not use. Pinned objects, and objects that may only be placed in VRAM, are not
 * evicted.
 *
 * Returns -EINVAL for a size of 0, for a range that is not made of whole pages,
 * and for an unknown flag; -EFAULT if nothing is mapped at one of the
 * addresses; -EBUSY if some pages cannot be migrated, because they are not
 * private anonymous memory, or are in use by a device or swapped out: all other
 * pages are in VRAM then; -ENOSPC if there is no room for all pages;
 * -EOPNOTSUPP if the parameter svm of the module is 0. A call that fails may
 * have migrated a part of the range.
 *
 * DRM_IOCTL_VVRAM_SVM_EVICT moves the pages of the range that are in the VRAM
 * of any device back to system memory. Returns -EINVAL for the same reasons,
 * and -EFAULT if the process cannot read one of the addresses. The call reads
 * each page, so memory that was never touched is populated and reads as zeroes.
 */
struct drm_vvram_svm_range {
	/** @address: in, the first address. */
	__u64 address;
	/** @size: in, how many bytes. */
	__u64 size;
	/** @flags: must be zero. */
	__u32 flags;
	/** @pad: must be zero. */
	__u32 pad;
};

/* An enum, so that Rust's bindgen resolves the numbers. */
enum {
	DRM_IOCTL_VVRAM_GETPARAM =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_GETPARAM,
			 struct drm_vvram_getparam),
	DRM_IOCTL_VVRAM_GEM_CREATE =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_GEM_CREATE,
			 struct drm_vvram_gem_create),
	DRM_IOCTL_VVRAM_GEM_MMAP_OFFSET =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_GEM_MMAP_OFFSET,
			 struct drm_vvram_gem_mmap_offset),
	DRM_IOCTL_VVRAM_PEER_ATTACHMENTS =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_PEER_ATTACHMENTS,
			 struct drm_peer_attachments),
	DRM_IOCTL_VVRAM_GEM_INFO =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_GEM_INFO,
			 struct drm_vvram_gem_info),
	DRM_IOCTL_VVRAM_PEER_IMPORT_INFO =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_PEER_IMPORT_INFO,
			 struct drm_peer_import_info),
	/*
	 * The direction is IOW, because a write back to the argument could fail
	 * after the copy was queued.
	 */
	DRM_IOCTL_VVRAM_GEM_COPY =
		DRM_IOW(DRM_COMMAND_BASE + DRM_VVRAM_GEM_COPY,
			struct drm_vvram_gem_copy),
	DRM_IOCTL_VVRAM_PEER_QUERY =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_PEER_QUERY,
			 struct drm_peer_query),
	/* As for GEM_COPY, nothing is written back to the argument. */
	DRM_IOCTL_VVRAM_VM_BIND =
		DRM_IOW(DRM_COMMAND_BASE + DRM_VVRAM_VM_BIND,
			struct drm_vvram_vm_bind),
	DRM_IOCTL_VVRAM_VM_READ =
		DRM_IOW(DRM_COMMAND_BASE + DRM_VVRAM_VM_READ,
			struct drm_vvram_vm_read),
	DRM_IOCTL_VVRAM_SVM_MIGRATE =
		DRM_IOW(DRM_COMMAND_BASE + DRM_VVRAM_SVM_MIGRATE,
			struct drm_vvram_svm_range),
	DRM_IOCTL_VVRAM_SVM_EVICT =
		DRM_IOW(DRM_COMMAND_BASE + DRM_VVRAM_SVM_EVICT,
			struct drm_vvram_svm_range),
	DRM_IOCTL_VVRAM_PEER_FLUSH =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_VVRAM_PEER_FLUSH,
			 struct drm_peer_flush),
};

#if defined(__cplusplus)
}
#endif

#endif /* _UAPI_VVRAM_DRM_H_ */
