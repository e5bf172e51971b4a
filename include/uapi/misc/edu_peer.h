/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * uAPI of the edu_peer driver: QEMU's edu device as an importer of dma-bufs,
 * and of memory of processes.
 *
 * Each edu device has a character device /dev/edu-peer-<PCI name>, such as
 * /dev/edu-peer-0000:03:00.0. An open file holds at most one attachment; it is
 * detached when the file is closed or when the device is unbound. After an
 * unbind all calls return -ENODEV. A call that needs an attachment returns
 * -EINVAL if there is none. Sizes and offsets are in bytes; fields named pad
 * or flags must be zero unless they list flags.
 *
 * The calls are for tests. They let the caller make the device do DMA, and
 * EDU_PEER_IOC_TABLE and EDU_PEER_IOC_MEMORY_QUERY return DMA addresses, which
 * are physical addresses without an IOMMU. So the character device belongs to
 * root, with mode 0600, and must not be opened to others.
 *
 * An open file also holds at most one registration of memory of a process,
 * which is independent of the attachment. See struct edu_peer_memory_register.
 */
#ifndef _UAPI_MISC_EDU_PEER_H_
#define _UAPI_MISC_EDU_PEER_H_

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * enum edu_peer_mode - the class of the importer
 */
enum edu_peer_mode {
	/**
	 * @EDU_PEER_MODE_STATIC: dma_buf_attach() without importer ops. The
	 * core pins the buffer when it is mapped, and never offers peer-to-peer
	 * memory.
	 */
	EDU_PEER_MODE_STATIC = 0,
	/**
	 * @EDU_PEER_MODE_DYNAMIC: invalidate_mappings drops the mapping; the
	 * next transfer maps again.
	 */
	EDU_PEER_MODE_DYNAMIC = 1,
	/**
	 * @EDU_PEER_MODE_PINNED: importer ops without invalidate_mappings, as
	 * most RDMA devices have them. A map or transfer returns -EINVAL unless
	 * EDU_PEER_IOC_PIN was called before.
	 */
	EDU_PEER_MODE_PINNED = 2,
	/**
	 * @EDU_PEER_MODE_REVOCABLE: as pinned, but invalidate_mappings revokes
	 * the buffer: it drops mapping and pin, and later maps return -ENODEV.
	 */
	EDU_PEER_MODE_REVOCABLE = 3,
	/** @EDU_PEER_MODE_NO_P2P: as dynamic, but without allow_peer2peer. */
	EDU_PEER_MODE_NO_P2P = 4,
	/**
	 * @EDU_PEER_MODE_CPU: the CPU in place of the device. There is no
	 * attachment and no scatter table: the CPU moves the bytes through a
	 * mapping of dma_buf_vmap(), between dma_buf_begin_cpu_access() and
	 * dma_buf_end_cpu_access().
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
	/** @flags: must be zero. */
	__u32 flags;
	/** @pad: must be zero. */
	__u32 pad;
	/** @size: out, size of the dma-buf; must be zero on input. */
	__u64 size;
};

/**
 * EDU_PEER_DIRECTION_READ - move bytes from the dma-buf, or from the registered
 * memory, to the caller.
 */
#define EDU_PEER_DIRECTION_READ	0
/**
 * EDU_PEER_DIRECTION_WRITE - move bytes from the caller to the dma-buf, or to
 * the registered memory.
 */
#define EDU_PEER_DIRECTION_WRITE	1

/**
 * struct edu_peer_transfer - argument of EDU_PEER_IOC_TRANSFER and of
 * EDU_PEER_IOC_MEMORY_TRANSFER
 *
 * Moves bytes by bus mastering, in pieces of at most 4 KiB. Each piece takes
 * two DMA transfers of 100 ms, to and from edu's internal buffer. A read takes
 * a third one, which overwrites the old content of the internal buffer.
 * EDU_PEER_IOC_TRANSFER maps the dma-buf if it is not mapped and @length is not
 * 0. Returns -EINVAL for a range outside the dma-buf, -ETIMEDOUT if the device
 * does not finish, -EIO if it is no bus master any more because it did not even
 * stop, -EINTR if a signal arrives between two pieces.
 */
struct edu_peer_transfer {
	/**
	 * @offset: in, first byte of the dma-buf, or of the registered range.
	 */
	__u64 offset;
	/** @length: in, number of bytes; out, bytes moved. */
	__u64 length;
	/** @data: in, user pointer to @length bytes. */
	__u64 data;
	/**
	 * @direction: in, EDU_PEER_DIRECTION_READ or EDU_PEER_DIRECTION_WRITE.
	 */
	__u32 direction;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * EDU_PEER_SUBMIT_MAX - how many bytes EDU_PEER_IOC_SUBMIT moves at most.
 */
#define EDU_PEER_SUBMIT_MAX	(16 * 4096)

/**
 * struct edu_peer_submit - argument of EDU_PEER_IOC_SUBMIT
 *
 * Starts a transfer, and returns. The call first waits for the implicit fences
 * of the dma-buf that the transfer is in conflict with, and then adds the fence
 * of the transfer to the dma-buf, as a write or a read according to the
 * direction. A file can have one such transfer at a time: until it is over,
 * this call and those that map, unmap, pin, unpin or transfer return -EBUSY. A
 * detach or a close of the file ends the transfer after the piece that is being
 * moved, and its fence signals with -ECANCELED. Returns -EINVAL in CPU mode,
 * for a length of 0 or above EDU_PEER_SUBMIT_MAX, and for a range outside the
 * dma-buf.
 */
struct edu_peer_submit {
	/** @offset: in, first byte of the dma-buf. */
	__u64 offset;
	/** @length: in, number of bytes. */
	__u64 length;
	/**
	 * @data: in, for EDU_PEER_DIRECTION_WRITE user pointer to @length
	 * bytes, which are read during the call; else zero.
	 */
	__u64 data;
	/**
	 * @direction: in, EDU_PEER_DIRECTION_READ or EDU_PEER_DIRECTION_WRITE.
	 */
	__u32 direction;
	/** @flags: must be zero. */
	__u32 flags;
};

/**
 * struct edu_peer_finish - argument of EDU_PEER_IOC_FINISH
 *
 * Waits for the last transfer of EDU_PEER_IOC_SUBMIT, and returns its error,
 * also with the results. A second call returns the same again. Returns -EINVAL
 * if there was no transfer, or if it had the other direction; -EINTR, or a
 * restart of the call, if a signal arrives.
 */
struct edu_peer_finish {
	/**
	 * @data: in, user pointer to @room bytes, which get the first bytes
	 * that were moved; ignored if @room is 0.
	 */
	__u64 data;
	/** @room: in, number of bytes; zero for EDU_PEER_DIRECTION_WRITE. */
	__u64 room;
	/** @moved: out, bytes moved; must be zero on input. */
	__u64 moved;
	/** @direction: in, the direction of the transfer. */
	__u32 direction;
	/** @flags: must be zero. */
	__u32 flags;
};

/** struct edu_peer_segment - one entry of the scatter table */
struct edu_peer_segment {
	/** @dma_address: DMA address of the first byte. */
	__u64 dma_address;
	/** @length: number of bytes. */
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
 * EDU_PEER_STATUS_MAPPED - the attachment is mapped.
 */
#define EDU_PEER_STATUS_MAPPED		(1 << 1)
/**
 * EDU_PEER_STATUS_PINNED - the attachment is pinned.
 */
#define EDU_PEER_STATUS_PINNED		(1 << 2)
/**
 * EDU_PEER_STATUS_REVOKED - the exporter has revoked the buffer.
 */
#define EDU_PEER_STATUS_REVOKED		(1 << 3)
/**
 * EDU_PEER_STATUS_IOMEM - the mapping of dma_buf_vmap() is I/O memory; only in
 * mode EDU_PEER_MODE_CPU.
 */
#define EDU_PEER_STATUS_IOMEM		(1 << 4)
/**
 * EDU_PEER_STATUS_BUSY - a transfer of EDU_PEER_IOC_SUBMIT is under way.
 */
#define EDU_PEER_STATUS_BUSY		(1 << 5)

/**
 * struct edu_peer_status - argument of EDU_PEER_IOC_STATUS
 *
 * All fields are zero without an attachment. The counters are those of the
 * attachment. The call waits for other calls on the same file that are under
 * way.
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
 * EDU_PEER_MEASURE_MAX - most rounds of one EDU_PEER_IOC_MEASURE, which are
 * limited because the reservation is held during all of them.
 */
#define EDU_PEER_MEASURE_MAX	10000

/**
 * struct edu_peer_measure - argument of EDU_PEER_IOC_MEASURE
 *
 * Maps and unmaps the dma-buf repeatedly, with its reservation held and without
 * a check of the scatter table, and returns how long that takes. Times are in
 * nanoseconds; under icount, where the clock of the guest counts instructions,
 * they are numbers of instructions. The results must be zero on input.
 */
struct edu_peer_measure {
	/** @rounds: in, number of rounds, from 1 to EDU_PEER_MEASURE_MAX. */
	__u32 rounds;
	/** @pad: must be zero. */
	__u32 pad;
	/**
	 * @least: out, least time of a map and an unmap, including one read of
	 * the clock.
	 */
	__u64 least;
	/**
	 * @most: out, longest time of a map and an unmap, including one read of
	 * the clock.
	 */
	__u64 most;
	/** @clock: out, least time of a read of the clock. */
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
 * the addresses need not be populated yet: a transfer faults pages in, with the
 * permissions of the process, and follows later changes of the address space.
 * Pages that were migrated to a GPU stay there if the device reaches them peer
 * to peer. If it does not, the pages migrate to system memory when the device
 * accesses them.
 *
 * The address space is that of the caller at the time of the registration,
 * whichever process makes later calls on the file: after fork() it is that of
 * the parent. After the last process with this address space has exited, or
 * called execve(), calls that access memory return -ESRCH. The registration
 * lasts until EDU_PEER_IOC_MEMORY_UNREGISTER, or until the file is closed. If a
 * process passes the open file to another process, it permits that process to
 * access its memory through the registration.
 *
 * Returns -EINVAL if the range is empty, longer than EDU_PEER_MEMORY_MAX, or
 * not made of whole pages, -EBUSY if the file has a registration, and
 * -EOPNOTSUPP if the kernel has to synchronize the DMA of the device, as when
 * it is bounced.
 */
struct edu_peer_memory_register {
	/** @address: in, the first address. */
	__u64 address;
	/** @size: in, number of bytes. */
	__u64 size;
	/** @flags: must be zero. */
	__u32 flags;
	/** @pad: must be zero. */
	__u32 pad;
};

/**
 * enum edu_peer_memory_kind - how the device reaches a page of a process
 */
enum edu_peer_memory_kind {
	/**
	 * @EDU_PEER_MEMORY_KIND_NONE: the call was made without
	 * EDU_PEER_MEMORY_QUERY_MAP.
	 */
	EDU_PEER_MEMORY_KIND_NONE = 0,
	/** @EDU_PEER_MEMORY_KIND_SYSTEM: the page is in system memory. */
	EDU_PEER_MEMORY_KIND_SYSTEM = 1,
	/**
	 * @EDU_PEER_MEMORY_KIND_BUS: the page is in the BAR of a peer, which
	 * the device reaches by its PCI bus address.
	 */
	EDU_PEER_MEMORY_KIND_BUS = 2,
	/**
	 * @EDU_PEER_MEMORY_KIND_HOST_BRIDGE: the page is in the BAR of a peer,
	 * which the device reaches through the host bridge.
	 */
	EDU_PEER_MEMORY_KIND_HOST_BRIDGE = 3,
};

/**
 * EDU_PEER_MEMORY_QUERY_MAP - ask how the device reaches a page. The page is
 * faulted in and mapped for reading, as for a transfer, unless it is mapped
 * already.
 */
#define EDU_PEER_MEMORY_QUERY_MAP	(1 << 0)

/**
 * struct edu_peer_memory_query - argument of EDU_PEER_IOC_MEMORY_QUERY
 *
 * The results about the page are valid until the process changes the page,
 * which may be before the call returns. Fields with results must be zero on
 * input.
 */
struct edu_peer_memory_query {
	/**
	 * @offset: in, any byte of the page, from the start of the registered
	 * range; zero without EDU_PEER_MEMORY_QUERY_MAP.
	 */
	__u64 offset;
	/** @flags: in, EDU_PEER_MEMORY_QUERY_*. */
	__u32 flags;
	/** @kind: out, one of enum edu_peer_memory_kind. */
	__u32 kind;
	/**
	 * @dma_address: out, DMA address of the page; zero without
	 * EDU_PEER_MEMORY_QUERY_MAP.
	 */
	__u64 dma_address;
	/**
	 * @invalidations: out, how often the kernel has invalidated a part of
	 * the range, because the process changed it or because pages moved.
	 */
	__u64 invalidations;
};

/**
 * EDU_PEER_MEMORY_MEASURE_WRITE - fault pages in for writing.
 */
#define EDU_PEER_MEMORY_MEASURE_WRITE	(1 << 0)
/**
 * EDU_PEER_MEMORY_MEASURE_P2P - leave memory of a GPU that the device reaches
 * where it is. Without this flag it migrates to system memory.
 */
#define EDU_PEER_MEMORY_MEASURE_P2P	(1 << 1)

/**
 * struct edu_peer_memory_measure - argument of EDU_PEER_IOC_MEMORY_MEASURE
 *
 * Faults the pages of a part of the registered memory in once, as a transfer
 * does before it maps them, and returns how long that takes. Times are in
 * nanoseconds; under icount, where the clock of the guest counts instructions,
 * they are numbers of instructions. The results must be zero on input.
 */
struct edu_peer_memory_measure {
	/** @offset: in, start of the part; a multiple of the page size. */
	__u64 offset;
	/** @length: in, bytes; a multiple of the page size, but not 0. */
	__u64 length;
	/** @flags: in, EDU_PEER_MEMORY_MEASURE_*. */
	__u32 flags;
	/** @pad: must be zero. */
	__u32 pad;
	/** @time: out, the time, including that of one read of the clock. */
	__u64 time;
	/** @clock: out, time of a read of the clock. */
	__u64 clock;
};

#define EDU_PEER_IOC		0xed

/* An enum, so that Rust's bindgen resolves the numbers. */
enum {
	/*
	 * Time page faults; the errors are those of
	 * EDU_PEER_IOC_MEMORY_TRANSFER.
	 */
	EDU_PEER_IOC_MEMORY_MEASURE = _IOWR(EDU_PEER_IOC, 0x0f, struct edu_peer_memory_measure),
	/* Attach a dma-buf; -EBUSY if the file has one already. */
	EDU_PEER_IOC_ATTACH = _IOWR(EDU_PEER_IOC, 0x10, struct edu_peer_attach),
	/* Detach it, unmapping and unpinning first. */
	EDU_PEER_IOC_DETACH = _IO(EDU_PEER_IOC, 0x11),
	/* Pin, unless pinned already; -EINVAL in static and CPU mode. */
	EDU_PEER_IOC_PIN = _IO(EDU_PEER_IOC, 0x12),
	/*
	 * Unpin, and unmap before that in modes whose mapping needs the pin;
	 * -EINVAL if not pinned.
	 */
	EDU_PEER_IOC_UNPIN = _IO(EDU_PEER_IOC, 0x13),
	/*
	 * Map, unless mapped already; -EBADMSG if the scatter table is wrong.
	 */
	EDU_PEER_IOC_MAP = _IO(EDU_PEER_IOC, 0x14),
	/* Unmap; -EINVAL if not mapped. */
	EDU_PEER_IOC_UNMAP = _IO(EDU_PEER_IOC, 0x15),
	EDU_PEER_IOC_TRANSFER = _IOWR(EDU_PEER_IOC, 0x16, struct edu_peer_transfer),
	/* Get the scatter table of the mapping; -EINVAL if there is none. */
	EDU_PEER_IOC_TABLE = _IOWR(EDU_PEER_IOC, 0x17, struct edu_peer_table),
	EDU_PEER_IOC_STATUS = _IOR(EDU_PEER_IOC, 0x18, struct edu_peer_status),
	/* Start a transfer, with a fence. */
	EDU_PEER_IOC_SUBMIT = _IOW(EDU_PEER_IOC, 0x19, struct edu_peer_submit),
	/* Wait for it. */
	EDU_PEER_IOC_FINISH = _IOWR(EDU_PEER_IOC, 0x1a, struct edu_peer_finish),
	/* Time map and unmap; -EBUSY if it is mapped, -EINVAL in CPU mode. */
	EDU_PEER_IOC_MEASURE = _IOWR(EDU_PEER_IOC, 0x1b, struct edu_peer_measure),
	/*
	 * Register memory of the calling process. This and the other calls
	 * whose names have MEMORY return -ENOTTY if the kernel has no HMM.
	 */
	EDU_PEER_IOC_MEMORY_REGISTER = _IOW(EDU_PEER_IOC, 0x1c, struct edu_peer_memory_register),
	/*
	 * End the registration. Waits for the piece that is being moved; a
	 * transfer that has further pieces to move fails with -ECANCELED.
	 * -EINVAL if there is no registration.
	 */
	EDU_PEER_IOC_MEMORY_UNREGISTER = _IO(EDU_PEER_IOC, 0x1d),
	/*
	 * Move bytes between the registered memory and the caller; the offset
	 * counts from the start of the registered range. No piece crosses a
	 * page. A process that changes its address space waits for the piece
	 * that is being moved there, but not for the rest of the transfer.
	 * -EINVAL if there is no registration or the range is outside of it,
	 * -EFAULT if the address has no memory that a device can access, -EPERM
	 * if the memory may not be written, -ESRCH if the address space is
	 * gone, -EIO if a page cannot be mapped.
	 */
	EDU_PEER_IOC_MEMORY_TRANSFER = _IOWR(EDU_PEER_IOC, 0x1e, struct edu_peer_transfer),
	/*
	 * Query how the device reaches a page, and counters; the errors are
	 * those of EDU_PEER_IOC_MEMORY_TRANSFER.
	 */
	EDU_PEER_IOC_MEMORY_QUERY = _IOWR(EDU_PEER_IOC, 0x1f, struct edu_peer_memory_query),
};

#endif /* _UAPI_MISC_EDU_PEER_H_ */
