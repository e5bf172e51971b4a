/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * uAPI of the bar_export driver: ranges of a PCI BAR as dma-bufs.
 *
 * Each device that is bound to the driver has a character device
 * /dev/bar-export-<PCI name>, such as /dev/bar-export-0000:03:00.0.
 */
#ifndef _UAPI_MISC_BAR_EXPORT_H_
#define _UAPI_MISC_BAR_EXPORT_H_

#include <linux/ioctl.h>
#include <linux/types.h>

#define BAR_EXPORT_IOC		0xed

/** BAR_EXPORT_MAX_RANGES - the most ranges that a buffer may have */
#define BAR_EXPORT_MAX_RANGES	(1 << 20)

/** struct bar_export_range - a piece of a BAR */
struct bar_export_range {
	/**
	 * @offset: where in the BAR the range begins, in bytes; whole pages.
	 */
	__u64 offset;
	/** @size: size of the range in bytes; whole pages. */
	__u64 size;
};

/** struct bar_export - argument of BAR_EXPORT_IOC_EXPORT */
struct bar_export {
	/** @bar: in, the number of a memory BAR, 0 to 5. */
	__u32 bar;
	/** @flags: must be zero. */
	__u32 flags;
	/**
	 * @count: in, how many ranges there are, 1 to BAR_EXPORT_MAX_RANGES.
	 */
	__u32 count;
	/** @pad: must be zero. */
	__u32 pad;
	/**
	 * @ranges: in, user pointer to struct bar_export_range, in the order of
	 * the buffer.
	 */
	__u64 ranges;
};

/* An enum, so that Rust's bindgen resolves the number. */
enum {
	/*
	 * Export ranges of a BAR as one dma-buf. Returns its file descriptor,
	 * with O_RDWR and O_CLOEXEC.
	 *
	 * The dma-buf is for PCI devices that take peer-to-peer memory and can
	 * be revoked; there is no system memory to fall back to. Any other
	 * importer, and one that has no route to the device, is refused with
	 * -EOPNOTSUPP when it attaches.
	 *
	 * Returns -EINVAL if there is no range, or one is not inside a memory
	 * BAR or not made of whole pages, or if flags or pad is not zero;
	 * -EFAULT if the argument or the ranges cannot be read; -ENODEV if the
	 * driver was unbound.
	 */
	BAR_EXPORT_IOC_EXPORT = _IOW(BAR_EXPORT_IOC, 0x20, struct bar_export),
};

#endif /* _UAPI_MISC_BAR_EXPORT_H_ */
