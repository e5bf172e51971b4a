/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of objects in VRAM that other devices access: which importer
 * attaches, pins and maps, by which path and for which reason, and when an
 * object is invalidated or moves.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM drm_peer

#if !defined(_DRM_PEER_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _DRM_PEER_TRACE_H

#include <linux/device.h>
#include <linux/tracepoint.h>
#include <linux/types.h>
#include <uapi/drm/drm_peer.h>

/* Exports the numbers to tools that read the binary trace. */
TRACE_DEFINE_ENUM(DRM_PEER_PATH_BUS);
TRACE_DEFINE_ENUM(DRM_PEER_PATH_HOST_BRIDGE);
TRACE_DEFINE_ENUM(DRM_PEER_PATH_SYSTEM);
TRACE_DEFINE_ENUM(DRM_PEER_PATH_REFUSED);
TRACE_DEFINE_ENUM(DRM_PEER_PATH_LINK);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_NONE);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_NO_OPT_IN);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_NOT_PCI);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_NO_ROUTE);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_OUTSIDE_BAR);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_SUSPENDED);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_OTHER_IMPORTER);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_NO_VRAM);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_SYSTEM_ONLY);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_NOT_REVOCABLE);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_NO_WINDOW);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_ENCODED);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_PINNED_ELSEWHERE);
TRACE_DEFINE_ENUM(DRM_PEER_REASON_QUOTA);

/* debugfs uses the same names. */
#define show_drm_peer_path(path)					\
	__print_symbolic(path,						\
			 { DRM_PEER_PATH_BUS, "bus" },			\
			 { DRM_PEER_PATH_HOST_BRIDGE, "host-bridge" },	\
			 { DRM_PEER_PATH_SYSTEM, "system" },		\
			 { DRM_PEER_PATH_REFUSED, "refused" },		\
			 { DRM_PEER_PATH_LINK, "link" })

#define show_drm_peer_reason(reason)					\
	__print_symbolic(reason,					\
			 { DRM_PEER_REASON_NONE, "none" },		\
			 { DRM_PEER_REASON_NO_OPT_IN, "no-opt-in" },	\
			 { DRM_PEER_REASON_NOT_PCI, "not-pci" },	\
			 { DRM_PEER_REASON_NO_ROUTE, "no-route" },	\
			 { DRM_PEER_REASON_OUTSIDE_BAR, "outside-bar" },	\
			 { DRM_PEER_REASON_SUSPENDED, "suspended" },	\
			 { DRM_PEER_REASON_OTHER_IMPORTER, "other-importer" },	\
			 { DRM_PEER_REASON_NO_VRAM, "no-vram" },	\
			 { DRM_PEER_REASON_SYSTEM_ONLY, "system-only" },	\
			 { DRM_PEER_REASON_NOT_REVOCABLE, "not-revocable" },	\
			 { DRM_PEER_REASON_NO_WINDOW, "no-window" },	\
			 { DRM_PEER_REASON_ENCODED, "encoded" },	\
			 { DRM_PEER_REASON_PINNED_ELSEWHERE, "pinned-elsewhere" },	\
			 { DRM_PEER_REASON_QUOTA, "quota" })

/*
 * The values are TTM_PL_*, and all ones for an object that has no memory yet.
 */
#define show_drm_peer_placement(placement)				\
	__print_symbolic(placement,					\
			 { 0, "swappable" },				\
			 { 1, "system" },				\
			 { 2, "vram" },					\
			 { 0xffffffff, "none" })

DECLARE_EVENT_CLASS(drm_peer_importer,
		    TP_PROTO(const struct device *exporter, u64 id, u64 size,
			     const struct device *importer, u32 path, u32 reason,
			     int ret),
		    TP_ARGS(exporter, id, size, importer, path, reason, ret),
		    TP_STRUCT__entry(__string(exporter, dev_name(exporter))
				     __string(importer, dev_name(importer))
				     __field(u64, id)
				     __field(u64, size)
				     __field(u32, path)
				     __field(u32, reason)
				     __field(int, ret)),
		    TP_fast_assign(__assign_str(exporter);
				   __assign_str(importer);
				   __entry->id = id;
				   __entry->size = size;
				   __entry->path = path;
				   __entry->reason = reason;
				   __entry->ret = ret;),
		    TP_printk("exporter=%s id=%llu size=%llu importer=%s path=%s reason=%s ret=%d",
			      __get_str(exporter), __entry->id, __entry->size,
			      __get_str(importer),
			      show_drm_peer_path(__entry->path),
			      show_drm_peer_reason(__entry->reason), __entry->ret)
);

DEFINE_EVENT(drm_peer_importer, drm_peer_attach,
	     TP_PROTO(const struct device *exporter, u64 id, u64 size,
		      const struct device *importer, u32 path, u32 reason,
		      int ret),
	     TP_ARGS(exporter, id, size, importer, path, reason, ret)
);

DEFINE_EVENT(drm_peer_importer, drm_peer_pin,
	     TP_PROTO(const struct device *exporter, u64 id, u64 size,
		      const struct device *importer, u32 path, u32 reason,
		      int ret),
	     TP_ARGS(exporter, id, size, importer, path, reason, ret)
);

DEFINE_EVENT(drm_peer_importer, drm_peer_unpin,
	     TP_PROTO(const struct device *exporter, u64 id, u64 size,
		      const struct device *importer, u32 path, u32 reason,
		      int ret),
	     TP_ARGS(exporter, id, size, importer, path, reason, ret)
);

DEFINE_EVENT(drm_peer_importer, drm_peer_map,
	     TP_PROTO(const struct device *exporter, u64 id, u64 size,
		      const struct device *importer, u32 path, u32 reason,
		      int ret),
	     TP_ARGS(exporter, id, size, importer, path, reason, ret)
);

DEFINE_EVENT(drm_peer_importer, drm_peer_unmap,
	     TP_PROTO(const struct device *exporter, u64 id, u64 size,
		      const struct device *importer, u32 path, u32 reason,
		      int ret),
	     TP_ARGS(exporter, id, size, importer, path, reason, ret)
);

TRACE_EVENT(drm_peer_invalidate,
	    TP_PROTO(const struct device *exporter, u64 id, u64 size,
		     u32 placement),
	    TP_ARGS(exporter, id, size, placement),
	    TP_STRUCT__entry(__string(exporter, dev_name(exporter))
			     __field(u64, id)
			     __field(u64, size)
			     __field(u32, placement)),
	    TP_fast_assign(__assign_str(exporter);
			   __entry->id = id;
			   __entry->size = size;
			   __entry->placement = placement;),
	    TP_printk("exporter=%s id=%llu size=%llu placement=%s",
		      __get_str(exporter), __entry->id, __entry->size,
		      show_drm_peer_placement(__entry->placement))
);

TRACE_EVENT(drm_peer_move,
	    TP_PROTO(const struct device *exporter, u64 id, u64 size, u32 from,
		     u32 to, bool evict, int ret),
	    TP_ARGS(exporter, id, size, from, to, evict, ret),
	    TP_STRUCT__entry(__string(exporter, dev_name(exporter))
			     __field(u64, id)
			     __field(u64, size)
			     __field(u32, from)
			     __field(u32, to)
			     __field(bool, evict)
			     __field(int, ret)),
	    TP_fast_assign(__assign_str(exporter);
			   __entry->id = id;
			   __entry->size = size;
			   __entry->from = from;
			   __entry->to = to;
			   __entry->evict = evict;
			   __entry->ret = ret;),
	    TP_printk("exporter=%s id=%llu size=%llu from=%s to=%s evict=%d ret=%d",
		      __get_str(exporter), __entry->id, __entry->size,
		      show_drm_peer_placement(__entry->from),
		      show_drm_peer_placement(__entry->to), __entry->evict,
		      __entry->ret)
);

#endif /* _DRM_PEER_TRACE_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
