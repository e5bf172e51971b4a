/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * uAPI of the edu_peer driver: QEMU's edu device as a dma-buf importer.
 *
 * Each edu device has a character device /dev/edu-peer-<PCI name>, such as
 * /dev/edu-peer-0000:03:00.0. An open file holds at most one attachment; it is
 * detached when the file is closed or the device is unbound, after which calls
 * return -ENODEV. A call that needs an attachment returns -EINVAL if there is
 * none. Sizes and offsets are in bytes; fields named pad must be zero.
 */
#ifndef _UAPI_MISC_EDU_PEER_H_
#define _UAPI_MISC_EDU_PEER_H_

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * enum edu_peer_mode - which class of importer to be
 */
enum edu_peer_mode {
	/**
	 * @EDU_PEER_MODE_STATIC: dma_buf_attach(), no importer ops: the core pins on
	 * map and never offers peer-to-peer memory.
	 */
	EDU_PEER_MODE_STATIC = 0,
	/**
	 * @EDU_PEER_MODE_DYNAMIC: invalidate_mappings drops the mapping; the next
	 * transfer maps again.
	 */
	EDU_PEER_MODE_DYNAMIC = 1,
	/**
	 * @EDU_PEER_MODE_PINNED: importer ops without invalidate_mappings, as most
	 * RDMA devices are; without EDU_PEER_IOC_PIN first, a map or transfer
	 * returns -EINVAL.
	 */
	EDU_PEER_MODE_PINNED = 2,
	/**
	 * @EDU_PEER_MODE_REVOCABLE: as pinned, but invalidate_mappings drops mapping
	 * and pin for good: later maps return -ENODEV.
	 */
	EDU_PEER_MODE_REVOCABLE = 3,
	/** @EDU_PEER_MODE_NO_P2P: as dynamic, but without allow_peer2peer. */
	EDU_PEER_MODE_NO_P2P = 4,
	/**
	 * @EDU_PEER_MODE_CPU: the kernel in place of the device: no attachment, but a
	 * mapping of dma_buf_vmap() by which the CPU moves the bytes, between
	 * begin and end of CPU access. It has no scatter table.
	 */
	EDU_PEER_MODE_CPU = 5,
};

/** struct edu_peer_attach - argument of EDU_PEER_IOC_ATTACH */
struct edu_peer_attach {
	/** @fd: in, the dma-buf. */
	__s32 fd;
	/** @mode: in, one of enum edu_peer_mode. */
	__u32 mode;
	/** @size: out, size of the dma-buf; must be zero on input. */
	__u64 size;
};

/**
 * EDU_PEER_DIRECTION_READ - move bytes from the dma-buf to the caller.
 */
#define EDU_PEER_DIRECTION_READ	0
/**
 * EDU_PEER_DIRECTION_WRITE - move bytes from the caller to the dma-buf.
 */
#define EDU_PEER_DIRECTION_WRITE	1

/**
 * struct edu_peer_transfer - argument of EDU_PEER_IOC_TRANSFER
 *
 * Moves bytes by bus mastering, in pieces of at most 4 KiB. Each takes two
 * transfers of 100 ms, to and from edu's internal buffer, and a read takes a
 * third, which overwrites what the internal buffer had before. A mapping is made
 * if there is none and @length is not 0. Returns -EINVAL for a range outside the
 * dma-buf, -ETIMEDOUT if the device does not finish, -EINTR if a signal arrives
 * between two pieces.
 */
struct edu_peer_transfer {
	/** @offset: in, first byte of the dma-buf. */
	__u64 offset;
	/** @length: in, number of bytes; out, bytes moved. */
	__u64 length;
	/** @data: in, user pointer to @length bytes. */
	__u64 data;
	/** @direction: in, EDU_PEER_DIRECTION_READ or EDU_PEER_DIRECTION_WRITE. */
	__u32 direction;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * EDU_PEER_SUBMIT_MAX - how many bytes EDU_PEER_IOC_SUBMIT moves at most.
 */
#define EDU_PEER_SUBMIT_MAX	(16 * 4096)

/** struct edu_peer_segment - one entry of the scatter table */
struct edu_peer_segment {
	/** @dma_address: address the device was given. */
	__u64 dma_address;
	/** @length: bytes. */
	__u64 length;
};

/**
 * struct edu_peer_table - argument of EDU_PEER_IOC_TABLE
 *
 * Gives the first entries if the array is too short.
 */
struct edu_peer_table {
	/** @segments: in, user pointer to struct edu_peer_segment. */
	__u64 segments;
	/** @count: in, entries the array holds; out, entries there are. */
	__u32 count;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * EDU_PEER_STATUS_ATTACHED - there is an attachment.
 */
#define EDU_PEER_STATUS_ATTACHED	(1 << 0)
/**
 * EDU_PEER_STATUS_MAPPED - it is mapped.
 */
#define EDU_PEER_STATUS_MAPPED		(1 << 1)
/**
 * EDU_PEER_STATUS_PINNED - it is pinned.
 */
#define EDU_PEER_STATUS_PINNED		(1 << 2)
/**
 * EDU_PEER_STATUS_REVOKED - the exporter took the mapping away for good.
 */
#define EDU_PEER_STATUS_REVOKED		(1 << 3)
/**
 * EDU_PEER_STATUS_IOMEM - the mapping of the kernel is I/O memory; only in mode
 * EDU_PEER_MODE_CPU.
 */
#define EDU_PEER_STATUS_IOMEM		(1 << 4)
/**
 * EDU_PEER_STATUS_BUSY - a transfer of EDU_PEER_IOC_SUBMIT is under way.
 */
#define EDU_PEER_STATUS_BUSY		(1 << 5)

/**
 * struct edu_peer_status - argument of EDU_PEER_IOC_STATUS
 *
 * All zero without an attachment; the counters are those of the attachment.
 * Waits for a call on the same file that is under way.
 */
struct edu_peer_status {
	/** @flags: out, EDU_PEER_STATUS_*. */
	__u32 flags;
	/** @pad: out, zero. */
	__u32 pad;
	/** @invalidations: out, times the exporter invalidated the mapping. */
	__u64 invalidations;
	/** @maps: out, times the attachment was mapped. */
	__u64 maps;
};

/**
 * EDU_PEER_MEASURE_MAX - most rounds of one EDU_PEER_IOC_MEASURE. The reservation
 * is held all the time.
 */
#define EDU_PEER_MEASURE_MAX	10000

/**
 * struct edu_peer_measure - argument of EDU_PEER_IOC_MEASURE
 *
 * Maps and unmaps the dma-buf again and again, with its reservation held and
 * without a look at the scatter table, and tells how long that takes. Times are
 * in nanoseconds; where the guest's time is the number of its instructions, that
 * is what they are. The results must be zero on input.
 */
struct edu_peer_measure {
	/** @rounds: in, how often, from 1 to EDU_PEER_MEASURE_MAX. */
	__u32 rounds;
	/** @pad: must be zero. */
	__u32 pad;
	/** @least: out, least time of a map and an unmap, with that of one look at the clock. */
	__u64 least;
	/** @most: out, most time of a map and an unmap. */
	__u64 most;
	/** @clock: out, least time of a look at the clock. */
	__u64 clock;
};

#define EDU_PEER_IOC		0xed

/* An enum, so that Rust's bindgen resolves the numbers. */
enum {
	/* Attach a dma-buf; -EBUSY if the file has one already. */
	EDU_PEER_IOC_ATTACH = _IOWR(EDU_PEER_IOC, 0x10, struct edu_peer_attach),
	/* Detach it, unmapping and unpinning first. */
	EDU_PEER_IOC_DETACH = _IO(EDU_PEER_IOC, 0x11),
	/* Pin, unless pinned already; -EINVAL in static and CPU mode. */
	EDU_PEER_IOC_PIN = _IO(EDU_PEER_IOC, 0x12),
	/* Unpin, unmapping first what needs it; -EINVAL if not pinned. */
	EDU_PEER_IOC_UNPIN = _IO(EDU_PEER_IOC, 0x13),
	/* Map, unless mapped already; -EBADMSG if the table is wrong. */
	EDU_PEER_IOC_MAP = _IO(EDU_PEER_IOC, 0x14),
	/* Unmap; -EINVAL if not mapped. */
	EDU_PEER_IOC_UNMAP = _IO(EDU_PEER_IOC, 0x15),
	EDU_PEER_IOC_TRANSFER = _IOWR(EDU_PEER_IOC, 0x16, struct edu_peer_transfer),
	/* The scatter table of the mapping; -EINVAL if there is none. */
	EDU_PEER_IOC_TABLE = _IOWR(EDU_PEER_IOC, 0x17, struct edu_peer_table),
	EDU_PEER_IOC_STATUS = _IOR(EDU_PEER_IOC, 0x18, struct edu_peer_status),
	/*
	 * Start a transfer of up to EDU_PEER_SUBMIT_MAX bytes, but not 0, and
	 * return. A fence of the dma-buf stands for it, of a writer or of a
	 * reader by its direction; those of others that it is in conflict with
	 * are waited for first. The bytes to write are taken during the call.
	 * One transfer of a file at a time is under way: until it is over this
	 * and the calls that map, unmap, pin, unpin or transfer return -EBUSY.
	 * A detach, and the end of the file, end it after the piece that is
	 * being moved, and its fence has the error ECANCELED. -EINVAL in CPU
	 * mode.
	 */
	EDU_PEER_IOC_SUBMIT = _IOWR(EDU_PEER_IOC, 0x19, struct edu_peer_transfer),
	/*
	 * Wait for the last transfer of EDU_PEER_IOC_SUBMIT, and return its
	 * error. The direction has to be that of the transfer, and the offset
	 * zero. Gives the number of bytes moved, and for EDU_PEER_DIRECTION_READ
	 * the bytes, as many as fit into the length that is given; a second call
	 * gives them again. -EINVAL if there was no transfer, -EINTR or a
	 * restart if a signal arrives.
	 */
	EDU_PEER_IOC_FINISH = _IOWR(EDU_PEER_IOC, 0x1a, struct edu_peer_transfer),
	/* Time map and unmap; -EBUSY if it is mapped, -EINVAL in CPU mode. */
	EDU_PEER_IOC_MEASURE = _IOWR(EDU_PEER_IOC, 0x1b, struct edu_peer_measure),
};

#endif /* _UAPI_MISC_EDU_PEER_H_ */
