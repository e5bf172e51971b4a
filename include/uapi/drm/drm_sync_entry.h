/* SPDX-License-Identifier: MIT */
/*
 * The entry of an array of sync objects in the argument of an ioctl that queues
 * work: a fence to wait for, or a place for the fence of the work.
 *
 * The structure has the same layout for 32- and 64-bit callers. A sync object
 * gives its fence as a sync file by DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD, and takes
 * that of a sync file by DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE.
 */
#ifndef _UAPI_DRM_SYNC_ENTRY_H_
#define _UAPI_DRM_SYNC_ENTRY_H_

#include "drm.h"

#if defined(__cplusplus)
extern "C" {
#endif

/**
 * struct drm_sync_entry - a fence to wait for, or a place for a fence
 *
 * Later versions may append fields. If the entries of the caller are longer
 * than those that the kernel knows, the bytes that the kernel does not know
 * must be zero.
 *
 * A call that gets an array of entries returns -EINVAL for a distance of two
 * entries that is below DRM_SYNC_ENTRY_SIZE_VER0, above 4096, or not a multiple
 * of 8; -E2BIG for an entry that is not zero beyond what the kernel knows; and
 * -EFAULT for an array that cannot be read. The kernel writes to no entry.
 */
struct drm_sync_entry {
	/** @handle: in, the sync object, -ENOENT if unknown. */
	__u32 handle;
	/** @flags: must be zero, or the call returns -EINVAL. */
	__u32 flags;
	/**
	 * @point: in, the point of a timeline sync object, or 0 for a binary
	 * sync object. Waiting for a point that has no fence yet, or for a sync
	 * object without a fence, fails with -EINVAL. A point to signal should
	 * be larger than all points of the timeline; if it is not, the fence is
	 * added with the number of the last point.
	 */
	__u64 point;
};

/**
 * DRM_SYNC_ENTRY_SIZE_VER0 - size of the first version of struct
 * drm_sync_entry.
 */
#define DRM_SYNC_ENTRY_SIZE_VER0	16

#if defined(__cplusplus)
}
#endif

#endif /* _UAPI_DRM_SYNC_ENTRY_H_ */
