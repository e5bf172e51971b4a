/* SPDX-License-Identifier: MIT */
/*
 * uAPI of the avram driver: objects that stay in VRAM, exported peer to peer.
 *
 * The structure has the same layout for 32- and 64-bit callers.
 */
#ifndef _UAPI_AVRAM_DRM_H_
#define _UAPI_AVRAM_DRM_H_

#include "drm.h"
#include "drm_peer.h"

#if defined(__cplusplus)
extern "C" {
#endif

#define DRM_AVRAM_GEM_CREATE		0x00
#define DRM_AVRAM_PEER_ATTACHMENTS	0x01
#define DRM_AVRAM_PEER_QUERY		0x02
#define DRM_AVRAM_PEER_FLUSH		0x03

/**
 * struct drm_avram_gem_create - argument of DRM_IOCTL_AVRAM_GEM_CREATE
 *
 * Creates an object in VRAM that reads as zeroes. Returns -EINVAL for a size of
 * 0 and -ENOSPC when there is no room for it.
 */
struct drm_avram_gem_create {
	/** @size: in, in bytes, at least 1; out, rounded up to a page. */
	__u64 size;
	/** @handle: out, must be zero on input. */
	__u32 handle;
	/** @pad: must be zero. */
	__u32 pad;
};

/* An enum, so that Rust's bindgen resolves the numbers. */
enum {
	DRM_IOCTL_AVRAM_GEM_CREATE =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_AVRAM_GEM_CREATE,
			 struct drm_avram_gem_create),
	DRM_IOCTL_AVRAM_PEER_ATTACHMENTS =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_AVRAM_PEER_ATTACHMENTS,
			 struct drm_peer_attachments),
	DRM_IOCTL_AVRAM_PEER_QUERY =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_AVRAM_PEER_QUERY,
			 struct drm_peer_query),
	DRM_IOCTL_AVRAM_PEER_FLUSH =
		DRM_IOWR(DRM_COMMAND_BASE + DRM_AVRAM_PEER_FLUSH,
			 struct drm_peer_flush),
};

#if defined(__cplusplus)
}
#endif

#endif /* _UAPI_AVRAM_DRM_H_ */
