/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of jobs in the queues of a ring. Context and sequence number of
 * its fence identify a job; each queue has a fence context of its own.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM drm_queue

#if !defined(_DRM_QUEUE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _DRM_QUEUE_TRACE_H

#include <linux/tracepoint.h>
#include <linux/types.h>

TRACE_EVENT(drm_queue_submit,
	    TP_PROTO(const char *ring, u64 context, u64 seqno, u32 dependencies,
		     bool external),
	    TP_ARGS(ring, context, seqno, dependencies, external),
	    TP_STRUCT__entry(__string(ring, ring)
			     __field(u64, context)
			     __field(u64, seqno)
			     __field(u32, dependencies)
			     __field(bool, external)),
	    TP_fast_assign(__assign_str(ring);
			   __entry->context = context;
			   __entry->seqno = seqno;
			   __entry->dependencies = dependencies;
			   __entry->external = external;),
	    TP_printk("ring=%s context=%llu seqno=%llu dependencies=%u external=%d",
		      __get_str(ring), __entry->context, __entry->seqno,
		      __entry->dependencies, __entry->external)
);

DECLARE_EVENT_CLASS(drm_queue_job,
		    TP_PROTO(const char *ring, u64 context, u64 seqno),
		    TP_ARGS(ring, context, seqno),
		    TP_STRUCT__entry(__string(ring, ring)
				     __field(u64, context)
				     __field(u64, seqno)),
		    TP_fast_assign(__assign_str(ring);
				   __entry->context = context;
				   __entry->seqno = seqno;),
		    TP_printk("ring=%s context=%llu seqno=%llu",
			      __get_str(ring), __entry->context,
			      __entry->seqno)
);

DEFINE_EVENT(drm_queue_job, drm_queue_run,
	     TP_PROTO(const char *ring, u64 context, u64 seqno),
	     TP_ARGS(ring, context, seqno));

/*
 * The driver has handed the job to the ring, or has done all of it by the CPU.
 */
DEFINE_EVENT(drm_queue_job, drm_queue_started,
	     TP_PROTO(const char *ring, u64 context, u64 seqno),
	     TP_ARGS(ring, context, seqno));

TRACE_EVENT(drm_queue_done,
	    TP_PROTO(const char *ring, u64 context, u64 seqno, int ret),
	    TP_ARGS(ring, context, seqno, ret),
	    TP_STRUCT__entry(__string(ring, ring)
			     __field(u64, context)
			     __field(u64, seqno)
			     __field(int, ret)),
	    TP_fast_assign(__assign_str(ring);
			   __entry->context = context;
			   __entry->seqno = seqno;
			   __entry->ret = ret;),
	    TP_printk("ring=%s context=%llu seqno=%llu ret=%d", __get_str(ring),
		      __entry->context, __entry->seqno, __entry->ret)
);

#endif /* _DRM_QUEUE_TRACE_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
