/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * uAPI of the edu_peer driver: QEMU's edu device as an importer of dma-bufs, and
 * of memory of processes.
 *
 * Each edu device has a character device /dev/edu-peer-<PCI name>, such as
 * /dev/edu-peer-0000:03:00.0. An open file holds at most one attachment; it is
 * detached when the file is closed or the device is unbound, after which calls
 * return -ENODEV. A call that needs an attachment returns -EINVAL if there is
 * none. Sizes and offsets are in bytes; fields named pad must be zero.
 *
 * An open file also holds at most one registration of memory of a process, which
 * has nothing to do with the attachment. See struct edu_peer_memory_register.
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
	/**
	 * @EDU_PEER_MODE_LATE: as dynamic, but a mapping that was invalidated is not
	 * used any more, and stays until the next map or the detach.
	 */
	EDU_PEER_MODE_LATE = 6,
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
 * Also that of EDU_PEER_IOC_SUBMIT, EDU_PEER_IOC_FINISH and
 * EDU_PEER_IOC_MEMORY_TRANSFER, which say what differs.
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

/**
 * EDU_PEER_MEMORY_MAX - most bytes of one EDU_PEER_IOC_MEMORY_REGISTER.
 */
#define EDU_PEER_MEMORY_MAX	(1 << 30)

/**
 * struct edu_peer_memory_register - argument of EDU_PEER_IOC_MEMORY_REGISTER
 *
 * Lets the device use addresses of the calling process. Nothing is pinned, and
 * there need not be memory yet: a transfer has pages faulted in, with the
 * permissions that the process has, and follows what the process does with its
 * addresses. Memory of a GPU that has been migrated there stays if the device
 * reaches it peer to peer. If it does not, the pages migrate to system memory when
 * they are accessed.
 *
 * The address space is the one of the process at the time of the call, whichever
 * process makes later calls on the file: after fork() it is that of the parent,
 * and after the last process that has it has exited, or called execve(), calls
 * that access memory return -ESRCH. The registration is there until
 * EDU_PEER_IOC_MEMORY_UNREGISTER, or until the file is closed. A process that
 * has got the file from another one accesses memory of that one: whoever passes
 * on the file permits this.
 *
 * Returns -EINVAL if the range is empty, longer than EDU_PEER_MEMORY_MAX, or not
 * made of whole pages, -EBUSY if the file has a registration, and -EOPNOTSUPP if
 * the kernel has to synchronize the DMA of the device, as when it is bounced.
 */
struct edu_peer_memory_register {
	/** @address: in, the first address. */
	__u64 address;
	/** @size: in, bytes. */
	__u64 size;
};

/**
 * enum edu_peer_memory_kind - how the device reaches a page of a process
 */
enum edu_peer_memory_kind {
	/** @EDU_PEER_MEMORY_KIND_NONE: the call did not ask. */
	EDU_PEER_MEMORY_KIND_NONE = 0,
	/** @EDU_PEER_MEMORY_KIND_SYSTEM: it is in system memory. */
	EDU_PEER_MEMORY_KIND_SYSTEM = 1,
	/** @EDU_PEER_MEMORY_KIND_BUS: in the BAR of a peer, by its bus address. */
	EDU_PEER_MEMORY_KIND_BUS = 2,
	/**
	 * @EDU_PEER_MEMORY_KIND_HOST_BRIDGE: in the BAR of a peer, through the host
	 * bridge.
	 */
	EDU_PEER_MEMORY_KIND_HOST_BRIDGE = 3,
};

/**
 * EDU_PEER_MEMORY_QUERY_MAP - ask how the device reaches a page: it is mapped for
 * reading, as for a transfer, unless it is mapped already.
 */
#define EDU_PEER_MEMORY_QUERY_MAP	(1 << 0)

/**
 * struct edu_peer_memory_query - argument of EDU_PEER_IOC_MEMORY_QUERY
 *
 * What it says of the page holds until the process changes the page, which may be
 * before the call returns. Fields with results must be zero on input.
 */
struct edu_peer_memory_query {
	/**
	 * @offset: in, any byte of the page, from the start of the registered range;
	 * zero without EDU_PEER_MEMORY_QUERY_MAP.
	 */
	__u64 offset;
	/** @flags: in, EDU_PEER_MEMORY_QUERY_*. */
	__u32 flags;
	/** @kind: out, one of enum edu_peer_memory_kind. */
	__u32 kind;
	/** @dma_address: out, address of the page that the device is given, or zero. */
	__u64 dma_address;
	/** @invalidations: out, times the process changed some of the addresses. */
	__u64 invalidations;
	/**
	 * @denied: out, 1 if the device did not reach some memory of a peer: what is
	 * accessed from then on migrates to system memory.
	 */
	__u32 denied;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * EDU_PEER_MEMORY_MEASURE_WRITE - fault pages in that may be written.
 */
#define EDU_PEER_MEMORY_MEASURE_WRITE	(1 << 0)
/**
 * EDU_PEER_MEMORY_MEASURE_P2P - leave memory of a GPU where it is, whether the
 * device reaches it or not. Without it that memory migrates to system memory.
 */
#define EDU_PEER_MEMORY_MEASURE_P2P	(1 << 1)

/**
 * struct edu_peer_memory_measure - argument of EDU_PEER_IOC_MEMORY_MEASURE
 *
 * Finds the pages of a part of the registered memory once, as a transfer does
 * before it maps them, and tells how long that takes. Times are in nanoseconds;
 * where the guest's time is the number of its instructions, that is what they
 * are. The results must be zero on input.
 */
struct edu_peer_memory_measure {
	/** @offset: in, where it begins; a multiple of the page size. */
	__u64 offset;
	/** @length: in, bytes; a multiple of the page size, but not 0. */
	__u64 length;
	/** @flags: in, EDU_PEER_MEMORY_MEASURE_*. */
	__u32 flags;
	/** @pad: must be zero. */
	__u32 pad;
	/** @time: out, what it takes, with that of one look at the clock. */
	__u64 time;
	/** @clock: out, time of a look at the clock. */
	__u64 clock;
};

#define EDU_PEER_IOC		0xed

/* An enum, so that Rust's bindgen resolves the numbers. */
enum {
	/* Time what finds pages; errors as those of EDU_PEER_IOC_MEMORY_TRANSFER. */
	EDU_PEER_IOC_MEMORY_MEASURE = _IOWR(EDU_PEER_IOC, 0x0f, struct edu_peer_memory_measure),
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
	/*
	 * Register memory of the calling process. This and the other calls whose
	 * names have MEMORY return -ENOTTY if the kernel has no HMM.
	 */
	EDU_PEER_IOC_MEMORY_REGISTER = _IOW(EDU_PEER_IOC, 0x1c, struct edu_peer_memory_register),
	/*
	 * End the registration. Waits for the piece that is being moved; a
	 * transfer that has others left fails with -ECANCELED. -EINVAL if there
	 * is none.
	 */
	EDU_PEER_IOC_MEMORY_UNREGISTER = _IO(EDU_PEER_IOC, 0x1d),
	/*
	 * Move bytes between the registered memory, by the offset from its
	 * start, and the caller. No piece crosses a page. A process that changes
	 * its addresses waits for the piece that is being moved there, and no
	 * longer. -EINVAL if there is no registration or the range is outside of
	 * it, -EFAULT if there is no memory at the address that a device can
	 * have, -EPERM if it may not be written, -ESRCH if the address space is
	 * gone, -EIO if a page cannot be mapped.
	 */
	EDU_PEER_IOC_MEMORY_TRANSFER = _IOWR(EDU_PEER_IOC, 0x1e, struct edu_peer_transfer),
	/* How a page is reached, and counters; errors as those of a transfer. */
	EDU_PEER_IOC_MEMORY_QUERY = _IOWR(EDU_PEER_IOC, 0x1f, struct edu_peer_memory_query),
};

#endif /* _UAPI_MISC_EDU_PEER_H_ */
