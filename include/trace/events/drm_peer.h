/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of objects in VRAM that other devices access: who attaches, pins
 * and maps, by which path and why, and when an object moves.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM drm_peer

#if !defined(_DRM_PEER_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _DRM_PEER_TRACE_H

#include <linux/device.h>
#include <linux/tracepoint.h>
#include <linux/types.h>

/* The names are those of debugfs; the values are Path of gem/peer.rs. */
#define show_drm_peer_path(path)					\
	__print_symbolic(path,						\
			 { 1, "bus" },					\
			 { 2, "host-bridge" },				\
			 { 3, "system" },				\
			 { 4, "refused" })

/* As above, Reason of gem/peer.rs. */
#define show_drm_peer_reason(reason)					\
	__print_symbolic(reason,					\
			 { 0, "none" },					\
			 { 1, "no-opt-in" },				\
			 { 2, "not-pci" },				\
			 { 3, "no-route" },				\
			 { 4, "outside-bar" },				\
			 { 5, "suspended" },				\
			 { 6, "other-importer" },			\
			 { 7, "no-vram" },				\
			 { 8, "system-only" },				\
			 { 9, "not-revocable" },			\
			 { 16, "pinned-elsewhere" },			\
			 { 17, "quota" },				\
			 { 18, "device-gone" })

/* TTM_PL_*, and one more for an object that has no memory yet. */
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
