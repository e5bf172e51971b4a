/* SPDX-License-Identifier: MIT */
/*
 * The common uAPI of DRM drivers that share VRAM peer to peer: it tells how
 * other devices reach an object, and why an access is not peer to peer.
 *
 * A driver has three ioctls with the arguments that are defined here, under
 * numbers of its own: ATTACHMENTS with struct drm_peer_attachments, QUERY with
 * struct drm_peer_query, and FLUSH with struct drm_peer_flush. If its device
 * imports buffers, it has IMPORT_INFO with struct drm_peer_import_info as well.
 * They are for the render node and need no privilege. The tracepoints
 * drm_peer_* use the same numbers of paths and reasons.
 *
 * The arguments contain nothing that only one driver knows, so that the DRM
 * core can have the same ioctls later, with the same structures: under numbers
 * below DRM_COMMAND_BASE, served by callbacks in struct drm_driver, and with a
 * capability of DRM_IOCTL_GET_CAP that tells whether the driver has them.
 * Drivers keep their own numbers then, as other names of the same functions.
 *
 * Every structure has the same layout for 32- and 64-bit callers. Fields named
 * pad and flag bits that are not listed here must be zero, or the call returns
 * -EINVAL.
 */
#ifndef _UAPI_DRM_PEER_H_
#define _UAPI_DRM_PEER_H_

#include "drm.h"

#if defined(__cplusplus)
extern "C" {
#endif

/**
 * enum drm_peer_path - how an importer reaches a buffer
 */
enum drm_peer_path {
	/**
	 * @DRM_PEER_PATH_UNKNOWN: the DMA addresses do not show the path, and
	 * the exporter does not tell it.
	 */
	DRM_PEER_PATH_UNKNOWN = 0,
	/** @DRM_PEER_PATH_BUS: peer to peer, by PCI bus address. */
	DRM_PEER_PATH_BUS = 1,
	/**
	 * @DRM_PEER_PATH_HOST_BRIDGE: peer to peer through the host bridge, by
	 * IOVA where the importer is behind an IOMMU.
	 */
	DRM_PEER_PATH_HOST_BRIDGE = 2,
	/** @DRM_PEER_PATH_SYSTEM: the buffer is served from system memory. */
	DRM_PEER_PATH_SYSTEM = 3,
	/** @DRM_PEER_PATH_REFUSED: the attach is refused. */
	DRM_PEER_PATH_REFUSED = 4,
	/**
	 * @DRM_PEER_PATH_LINK: peer to peer by a link between both devices that
	 * is not PCI, such as XGMI, NVLink or Xe Link, and that the driver of
	 * the exporter knows. The route of PCI does not matter then. No driver
	 * has such a link yet; each call that returns a path may return this
	 * one later.
	 */
	DRM_PEER_PATH_LINK = 5,
};

/**
 * enum drm_peer_reason - why a path is not peer to peer
 *
 * With a reason from 1 to 5, with 9 or with 11, the importer gets the buffer in
 * system memory if the buffer may be placed and imported there; otherwise the
 * importer is refused. With 6 to 8 the importer could use peer-to-peer memory,
 * but the buffer is in system memory. The same is true for PINNED_ELSEWHERE,
 * unless the importer was refused, and for SUSPENDED, if the importer can be
 * revoked. NO_WINDOW is the reason why a map gets system memory, or why it
 * fails with -ENOSPC if the buffer cannot move there.
 *
 * If several reasons apply, one of them is given. It is not defined which one,
 * so a caller that removes a reason may get another one. Later versions may
 * have more reasons, and more paths.
 */
enum drm_peer_reason {
	/** @DRM_PEER_REASON_NONE: it is peer to peer. */
	DRM_PEER_REASON_NONE = 0,
	/**
	 * @DRM_PEER_REASON_NO_OPT_IN: the importer does not take peer-to-peer
	 * memory.
	 */
	DRM_PEER_REASON_NO_OPT_IN = 1,
	/** @DRM_PEER_REASON_NOT_PCI: the importer is not a PCI device. */
	DRM_PEER_REASON_NOT_PCI = 2,
	/**
	 * @DRM_PEER_REASON_NO_ROUTE: PCI has no permitted route between both, or
	 * the DMA mask of the importer does not cover the BAR.
	 */
	DRM_PEER_REASON_NO_ROUTE = 3,
	/** @DRM_PEER_REASON_OUTSIDE_BAR: the BAR does not show the buffer. */
	DRM_PEER_REASON_OUTSIDE_BAR = 4,
	/**
	 * @DRM_PEER_REASON_SUSPENDED: the exporting device does not resume, or
	 * was suspended when the importer mapped the buffer.
	 */
	DRM_PEER_REASON_SUSPENDED = 5,
	/**
	 * @DRM_PEER_REASON_OTHER_IMPORTER: another importer of the buffer needs
	 * system memory.
	 */
	DRM_PEER_REASON_OTHER_IMPORTER = 6,
	/** @DRM_PEER_REASON_NO_VRAM: there is no room in VRAM. */
	DRM_PEER_REASON_NO_VRAM = 7,
	/** @DRM_PEER_REASON_SYSTEM_ONLY: the buffer is never in VRAM. */
	DRM_PEER_REASON_SYSTEM_ONLY = 8,
	/**
	 * @DRM_PEER_REASON_NOT_REVOCABLE: the importer cannot be revoked, and
	 * the device does not give VRAM to such importers.
	 */
	DRM_PEER_REASON_NOT_REVOCABLE = 9,
	/**
	 * @DRM_PEER_REASON_NO_WINDOW: the aperture through which peers see VRAM
	 * is full of windows of buffers that are pinned, or is busy.
	 */
	DRM_PEER_REASON_NO_WINDOW = 10,
	/**
	 * @DRM_PEER_REASON_ENCODED: peers cannot read the buffer in VRAM as it
	 * is, because it is compressed or encrypted there.
	 */
	DRM_PEER_REASON_ENCODED = 11,
	/**
	 * @DRM_PEER_REASON_PINNED_ELSEWHERE: the buffer is pinned where the
	 * importer cannot reach it.
	 */
	DRM_PEER_REASON_PINNED_ELSEWHERE = 16,
	/**
	 * @DRM_PEER_REASON_QUOTA: the limit of pinned VRAM is reached. This is
	 * a reason of failed pins, which only tracepoints and counters show; an
	 * attach does not fail with it.
	 */
	DRM_PEER_REASON_QUOTA = 17,
};

/**
 * DRM_PEER_IMPORTER_PINNED - the attachment is pinned.
 */
#define DRM_PEER_IMPORTER_PINNED	(1 << 0)
/**
 * DRM_PEER_IMPORTER_MAPPED - the attachment holds at least one mapping.
 */
#define DRM_PEER_IMPORTER_MAPPED	(1 << 1)
/**
 * DRM_PEER_IMPORTER_DYNAMIC - the importer attaches dynamically: it manages
 * pinning itself.
 */
#define DRM_PEER_IMPORTER_DYNAMIC	(1 << 2)
/**
 * DRM_PEER_IMPORTER_REVOCABLE - the mapping of the importer can be revoked.
 */
#define DRM_PEER_IMPORTER_REVOCABLE	(1 << 3)
/**
 * DRM_PEER_IMPORTER_PEER2PEER - the importer opted in to peer-to-peer memory.
 */
#define DRM_PEER_IMPORTER_PEER2PEER	(1 << 4)
/**
 * DRM_PEER_IMPORTER_NOT_PCI - the importer is not a PCI device. Only for QUERY:
 * an attachment has the name of the bus instead.
 */
#define DRM_PEER_IMPORTER_NOT_PCI	(1 << 5)

#define DRM_PEER_NAME_LEN	32

/**
 * struct drm_peer_attachment - one importer of a buffer
 *
 * In sysfs the importer is /sys/bus/@bus/devices/@device.
 */
struct drm_peer_attachment {
	/** @device: name of the importing device, NUL terminated. */
	char device[DRM_PEER_NAME_LEN];
	/**
	 * @bus: name of the bus of the importing device, such as pci, platform
	 * or auxiliary, NUL terminated; empty if the device is on no bus.
	 */
	char bus[DRM_PEER_NAME_LEN];
	/**
	 * @driver: name of the driver that the importing device had when it
	 * attached, or of its bus if it had none, NUL terminated.
	 */
	char driver[DRM_PEER_NAME_LEN];
	/** @path: one of enum drm_peer_path. */
	__u32 path;
	/** @reason: one of enum drm_peer_reason. */
	__u32 reason;
	/** @flags: DRM_PEER_IMPORTER_*. */
	__u32 flags;
	/** @distance: PCI hops to the importer, -1 where there is no route. */
	__s32 distance;
	/**
	 * @age: for DRM_PEER_PATH_REFUSED, time since the refusal, in
	 * nanoseconds; else 0.
	 */
	__u64 age;
};

/**
 * DRM_PEER_ATTACHMENT_SIZE_VER0 - size of the first version of struct
 * drm_peer_attachment.
 */
#define DRM_PEER_ATTACHMENT_SIZE_VER0	120

/**
 * struct drm_peer_attachments - argument of ATTACHMENTS
 *
 * Lists the attachments of a buffer, oldest first, followed by the most recent
 * refusals (at most 8, with DRM_PEER_PATH_REFUSED), oldest first. A refusal has
 * the flags of the importer and the distance to it. If the array is too short,
 * it gets the first entries. With count 0, which asks how many entries there
 * are, the array may be a null pointer and entry_size is ignored.
 *
 * Later versions may append fields to the entries. If the entries of the caller
 * are longer than those that the kernel knows, the kernel fills the rest with
 * zeroes; if they are shorter, the kernel writes their beginning.
 *
 * Returns -EINVAL for an imported object, whose attachments only its exporter
 * knows, and for an entry_size that is below DRM_PEER_ATTACHMENT_SIZE_VER0,
 * above 4096, or not a multiple of 8.
 */
struct drm_peer_attachments {
	/** @handle: in, -ENOENT if unknown. */
	__u32 handle;
	/**
	 * @entry_size: in, bytes from one entry of the array to the next; out,
	 * the size of the entry that the kernel knows.
	 */
	__u32 entry_size;
	/** @count: in, entries in the array; out, entries that exist. */
	__u32 count;
	/** @pad: must be zero. */
	__u32 pad;
	/** @attachments: in, user pointer to struct drm_peer_attachment. */
	__u64 attachments;
	/**
	 * @inode: out, number of the inode of the dma-buf, as fstat() and
	 * /sys/kernel/debug/dma_buf/bufinfo show it; 0 if the object is not
	 * exported. Must be zero on input.
	 */
	__u64 inode;
};

/**
 * struct drm_peer_address - a PCI function
 */
struct drm_peer_address {
	/** @domain: number of the PCI domain. */
	__u32 domain;
	/** @bus: number of the bus. */
	__u8 bus;
	/** @devfn: number of the device times 8, plus that of the function. */
	__u8 devfn;
	/** @pad: must be zero. */
	__u16 pad;
};

/**
 * DRM_PEER_ROUTE_BRIDGE - both devices are below one bridge, which is in
 * @bridge of struct drm_peer_query.
 *
 * Without a common bridge the route goes through the host. If importer and
 * exporter are the same device, that device is in @bridge.
 */
#define DRM_PEER_ROUTE_BRIDGE		(1 << 0)
/**
 * DRM_PEER_ROUTE_ACS_REDIRECT - a port on the way to the common bridge
 * redirects requests to the host. The first such port, counted from the
 * exporter, is in @redirect of struct drm_peer_query, and the bits that are set
 * there are in @acs.
 */
#define DRM_PEER_ROUTE_ACS_REDIRECT	(1 << 1)
/**
 * DRM_PEER_ROUTE_HOST - the route goes through the host, because there is no
 * common bridge or because a port redirects requests.
 */
#define DRM_PEER_ROUTE_HOST		(1 << 2)
/**
 * DRM_PEER_ROUTE_HOST_CPU - the processor is known to forward requests between
 * its host bridges, so the host bridge was not looked up.
 */
#define DRM_PEER_ROUTE_HOST_CPU		(1 << 3)
/**
 * DRM_PEER_ROUTE_HOST_LISTED - the kernel has the host bridge on its list of
 * host bridges that forward requests.
 *
 * With neither this flag nor DRM_PEER_ROUTE_HOST_CPU there is no route through
 * the host. The host bridge that was looked up has the IDs @host_vendor and
 * @host_device of struct drm_peer_query.
 */
#define DRM_PEER_ROUTE_HOST_LISTED	(1 << 4)

/**
 * struct drm_peer_query - argument of QUERY
 *
 * Returns which path an importer would get if it attached to a buffer, without
 * an attach. The path and the reason are those of an attach at this time; they
 * change if, for example, another importer attaches or pins. The call resumes
 * the exporting device if the attach would. The DMA mask of the importer does
 * not count here, because its driver may still have to set it.
 *
 * The facts about the route are filled in even if another reason than the route
 * decides the path; @reason says which one does. There are none for an importer
 * that is not a PCI device: @distance is -1, and what follows it is zero.
 *
 * Returns -ENOENT for an unknown handle, -ENXIO if there is no such PCI device,
 * and -EINVAL for an imported object, for the address of an importer that is
 * not a PCI device, and for a class of importer that cannot exist: an importer
 * that attaches statically neither takes peer-to-peer memory nor can be
 * revoked.
 */
struct drm_peer_query {
	/**
	 * @handle: in, the buffer. 0 asks whether the importer could reach VRAM
	 * at all: the answer is that for a buffer that importers get in VRAM or
	 * not at all, that the BAR shows, and that is not pinned.
	 */
	__u32 handle;
	/**
	 * @flags: in, class of the importer: any of DRM_PEER_IMPORTER_DYNAMIC,
	 * DRM_PEER_IMPORTER_REVOCABLE and DRM_PEER_IMPORTER_PEER2PEER; and
	 * DRM_PEER_IMPORTER_NOT_PCI.
	 */
	__u32 flags;
	/**
	 * @importer: in, the PCI function that would attach; zero with
	 * DRM_PEER_IMPORTER_NOT_PCI.
	 */
	struct drm_peer_address importer;
	/**
	 * @path: out, one of enum drm_peer_path. This and what follows must be
	 * zero on input.
	 */
	__u32 path;
	/** @reason: out, one of enum drm_peer_reason. */
	__u32 reason;
	/**
	 * @distance: out, PCI hops to the importer, -1 if there is no route.
	 */
	__s32 distance;
	/** @route: out, DRM_PEER_ROUTE_*. */
	__u32 route;
	/** @bridge: out, see DRM_PEER_ROUTE_BRIDGE; else zero. */
	struct drm_peer_address bridge;
	/** @redirect: out, see DRM_PEER_ROUTE_ACS_REDIRECT; else zero. */
	struct drm_peer_address redirect;
	/**
	 * @acs: out, the bits of the ACS control register of @redirect that
	 * make it redirect: PCI_ACS_RR, PCI_ACS_CR and PCI_ACS_EC.
	 */
	__u16 acs;
	/**
	 * @host_vendor: out, PCI vendor ID of the host bridge that was looked
	 * up; 0 if none was, or if no PCI function represents it.
	 */
	__u16 host_vendor;
	/** @host_device: out, PCI device ID of that host bridge. */
	__u16 host_device;
	/** @pad: must be zero. */
	__u16 pad;
};

/**
 * struct drm_peer_import_info - argument of IMPORT_INFO
 *
 * Returns how the device reaches the buffer behind an imported object. The call
 * maps the buffer for the device if it is not mapped. The path and its reason
 * are only known if the exporter is a device of this driver, otherwise @path is
 * DRM_PEER_PATH_UNKNOWN; they may change when the buffer moves. Returns -EINVAL
 * for an object that is not imported, -ENODEV if the driver of the exporting
 * device is gone, -EAGAIN if the buffer has moved and was given more work while
 * the call waited for work at its old place, so that it has to be repeated,
 * -EINTR if a signal arrived, and other errors of the exporter.
 */
struct drm_peer_import_info {
	/** @handle: in, -ENOENT if unknown. */
	__u32 handle;
	/**
	 * @path: out, one of enum drm_peer_path. This and what follows must be
	 * zero on input.
	 */
	__u32 path;
	/** @reason: out, one of enum drm_peer_reason. */
	__u32 reason;
	/** @segments: out, the number of pieces that the mapping has. */
	__u32 segments;
	/**
	 * @invalidations: out, how often the exporter invalidated the mapping
	 * of the device.
	 */
	__u64 invalidations;
};

/**
 * enum drm_peer_order - when work of a device reads what a peer has written
 *
 * A peer reports that it is done by a write to system memory, such as an entry
 * of a completion queue, or by an interrupt. PCI keeps that behind what the
 * peer wrote to VRAM before only as far as both go the same way.
 */
enum drm_peer_order {
	/**
	 * @DRM_PEER_ORDER_FLUSH: work that is submitted after a FLUSH, which
	 * follows the report of the peer.
	 */
	DRM_PEER_ORDER_FLUSH = 0,
	/**
	 * @DRM_PEER_ORDER_REPORT: work that is submitted after the report of the
	 * peer. FLUSH is not necessary.
	 */
	DRM_PEER_ORDER_REPORT = 1,
};

/**
 * struct drm_peer_flush - argument of FLUSH
 *
 * Waits until what peers have written to a buffer, as far as they have reported
 * that, is in the memory of the device, where its engines read it. The CPU
 * needs no FLUSH to read it through a mapping of the buffer. A buffer in system
 * memory needs none, for which the call does nothing.
 *
 * Returns -ENOENT for an unknown handle, and -EINVAL for an imported object.
 */
struct drm_peer_flush {
	/** @handle: in, the buffer; 0 only asks for @order. */
	__u32 handle;
	/** @order: out, one of enum drm_peer_order. Must be zero on input. */
	__u32 order;
};

#if defined(__cplusplus)
}
#endif

#endif /* _UAPI_DRM_PEER_H_ */
