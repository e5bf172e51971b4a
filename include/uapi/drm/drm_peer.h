/* SPDX-License-Identifier: MIT */
/*
 * How other devices reach objects in VRAM, and why not: what DRM drivers that
 * share VRAM peer to peer have in common in their uAPI.
 *
 * A driver has two ioctls with the arguments that are defined here, under
 * numbers of its own: ATTACHMENTS with struct drm_peer_attachments, and QUERY
 * with struct drm_peer_query. Both are for the render node and need no
 * privilege. The numbers of paths and reasons are those of the tracepoints
 * drm_peer_*, too.
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
	 * @DRM_PEER_PATH_UNKNOWN: by addresses that do not tell what is behind
	 * them, from an exporter that does not tell either.
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
};

/**
 * enum drm_peer_reason - why a path is not peer to peer
 *
 * The reasons from 1 to 5, and 9, lead to system memory where the buffer may
 * live there and importers may get it there, and else to a refusal. Where
 * several of these apply, the first of the list is given. With 6 to 8 the
 * importer could have peer-to-peer memory, but the buffer is in system memory.
 * The same is true for PINNED_ELSEWHERE, unless the importer was refused, and
 * for SUSPENDED, if the importer can be revoked. NO_WINDOW is the reason of a
 * map: of system memory, or of -ENOSPC where the buffer cannot move there.
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
	/** @DRM_PEER_REASON_NO_ROUTE: PCI has no permitted route between both. */
	DRM_PEER_REASON_NO_ROUTE = 3,
	/** @DRM_PEER_REASON_OUTSIDE_BAR: the BAR does not show the buffer. */
	DRM_PEER_REASON_OUTSIDE_BAR = 4,
	/**
	 * @DRM_PEER_REASON_SUSPENDED: the exporting device does not resume, or
	 * was suspended when the importer mapped the buffer.
	 */
	DRM_PEER_REASON_SUSPENDED = 5,
	/** @DRM_PEER_REASON_OTHER_IMPORTER: another one needs system memory. */
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
	 * is full of windows that others have mapped.
	 */
	DRM_PEER_REASON_NO_WINDOW = 10,
	/** @DRM_PEER_REASON_PINNED_ELSEWHERE: pinned where it cannot reach. */
	DRM_PEER_REASON_PINNED_ELSEWHERE = 16,
	/**
	 * @DRM_PEER_REASON_QUOTA: the limit of pinned VRAM is reached. For
	 * tracepoints and counters alone: a pin fails with it, not an attach.
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

#define DRM_PEER_NAME_LEN	32

/**
 * struct drm_peer_attachment - one importer of a buffer
 */
struct drm_peer_attachment {
	/** @device: name of the importing device, NUL terminated. */
	char device[DRM_PEER_NAME_LEN];
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
	 * @age: for DRM_PEER_PATH_REFUSED, how long ago that was, in
	 * nanoseconds; else 0.
	 */
	__u64 age;
};

/**
 * DRM_PEER_ATTACHMENT_SIZE_VER0 - size of the first version of struct
 * drm_peer_attachment.
 */
#define DRM_PEER_ATTACHMENT_SIZE_VER0	88

/**
 * struct drm_peer_attachments - argument of ATTACHMENTS
 *
 * Lists the attachments of a buffer, oldest first, followed by the most recent
 * refusals (at most 8, with DRM_PEER_PATH_REFUSED), oldest first. A refusal has
 * the flags of the importer and the distance to it. An array that is too short
 * gets the first entries. With count 0, which asks how many there are, it may be
 * a null pointer, and entry_size is not looked at.
 *
 * Records grow at their end. A caller that knows a longer one than the kernel
 * gets zeroes for the rest, and one that knows a shorter one its beginning.
 *
 * Returns -EINVAL for an imported object, since its exporter knows, and for an
 * entry_size that is below DRM_PEER_ATTACHMENT_SIZE_VER0, above 4096, or not a
 * multiple of 8.
 */
struct drm_peer_attachments {
	/** @handle: in, -ENOENT if unknown. */
	__u32 handle;
	/**
	 * @entry_size: in, bytes from one entry of the array to the next; out,
	 * the size of the record that the kernel knows.
	 */
	__u32 entry_size;
	/** @count: in, entries the array holds; out, entries there are. */
	__u32 count;
	/** @pad: must be zero. */
	__u32 pad;
	/** @attachments: in, user pointer to struct drm_peer_attachment. */
	__u64 attachments;
	/**
	 * @inode: out, number of the inode of the dma-buf, as fstat() and
	 * /sys/kernel/debug/dma_buf/bufinfo have it; 0 if the object is not
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
 * Without one they meet in the host. If importer and exporter are one device it
 * is in @bridge itself.
 */
#define DRM_PEER_ROUTE_BRIDGE		(1 << 0)
/**
 * DRM_PEER_ROUTE_ACS_REDIRECT - a port on the way to that bridge sends requests
 * to the host instead. The first such port is in @redirect of struct
 * drm_peer_query, what is set there in @acs.
 *
 * The way begins at the exporter.
 */
#define DRM_PEER_ROUTE_ACS_REDIRECT	(1 << 1)
/**
 * DRM_PEER_ROUTE_HOST - the route goes through the host.
 *
 * It does without a common bridge, or with a redirection.
 */
#define DRM_PEER_ROUTE_HOST		(1 << 2)
/**
 * DRM_PEER_ROUTE_HOST_CPU - the processor is one that is known to forward, so
 * that the host bridge was not looked up.
 */
#define DRM_PEER_ROUTE_HOST_CPU		(1 << 3)
/**
 * DRM_PEER_ROUTE_HOST_LISTED - the kernel has the host bridge on its list of
 * those that forward.
 *
 * With neither this one nor DRM_PEER_ROUTE_HOST_CPU there is no route through
 * the host. The host bridge that decided has the IDs @host_vendor and
 * @host_device of struct drm_peer_query.
 */
#define DRM_PEER_ROUTE_HOST_LISTED	(1 << 4)

/**
 * struct drm_peer_query - argument of QUERY
 *
 * Tells what a PCI device would get if it attached to a buffer, without an
 * attach: path and reason are those that it would then have, unless something
 * changes in between, such as another importer that attaches or pins. It resumes
 * the exporting device if the attach would.
 *
 * What the route follows from is told whether it is what decides or not; reason
 * says that.
 *
 * Returns -ENOENT for an unknown handle, -ENXIO if there is no such PCI device,
 * and -EINVAL for an imported object and for a class of importer that cannot be:
 * one that attaches statically neither takes peer-to-peer memory nor can be told
 * to drop its mapping.
 */
struct drm_peer_query {
	/**
	 * @handle: in, the buffer, or 0: could the importer reach VRAM at all?
	 * It is the question for a buffer that importers get in VRAM or not at
	 * all, that the BAR shows, and that nobody has pinned.
	 */
	__u32 handle;
	/**
	 * @flags: in, class of the importer: any of DRM_PEER_IMPORTER_DYNAMIC,
	 * DRM_PEER_IMPORTER_REVOCABLE and DRM_PEER_IMPORTER_PEER2PEER.
	 */
	__u32 flags;
	/** @importer: in, which device. */
	struct drm_peer_address importer;
	/**
	 * @path: out, one of enum drm_peer_path. This and what follows must be
	 * zero on input.
	 */
	__u32 path;
	/** @reason: out, one of enum drm_peer_reason. */
	__u32 reason;
	/** @distance: out, PCI hops to the importer, -1 if there is no route. */
	__s32 distance;
	/** @route: out, DRM_PEER_ROUTE_*. */
	__u32 route;
	/** @bridge: out, see DRM_PEER_ROUTE_BRIDGE; else zero. */
	struct drm_peer_address bridge;
	/** @redirect: out, see DRM_PEER_ROUTE_ACS_REDIRECT; else zero. */
	struct drm_peer_address redirect;
	/**
	 * @acs: out, those bits of the ACS control register of @redirect that
	 * make it one: PCI_ACS_RR, PCI_ACS_CR and PCI_ACS_EC.
	 */
	__u16 acs;
	/**
	 * @host_vendor: out, PCI vendor of the host bridge that was looked up;
	 * 0 if none was, or it has no PCI function that stands for it.
	 */
	__u16 host_vendor;
	/** @host_device: out, its PCI device ID. */
	__u16 host_device;
	/** @pad: must be zero. */
	__u16 pad;
};

#if defined(__cplusplus)
}
#endif

#endif /* _UAPI_DRM_PEER_H_ */
