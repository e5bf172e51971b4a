// SPDX-License-Identifier: GPL-2.0
/*
 * fi_dmabuf - RDMA between dma-bufs with libfabric
 *
 *	fi_dmabuf --address A.B.C.D --size BYTES --from BUFFER --to BUFFER
 *
 * A BUFFER is fd:N, a dma-buf that the caller passes as file descriptor N, or
 * host, memory of this process. Both are registered with the verbs provider,
 * dma-bufs with FI_MR_DMABUF, and two endpoints at the address are connected to
 * each other. Then the first SIZE bytes are written (from -> to), read back with
 * other content (to -> from), and sent (from -> to), and the CPU compares every
 * byte of what arrived. For each, there is a line such as
 *
 *	ok write 65536 bytes verified
 *
 * The exit status is 0 if all went well; otherwise it is 1, and a message tells
 * what failed. No wait takes longer than 20 seconds.
 *
 * The provider has the CPU copy messages of up to 256 bytes out of the local
 * buffer, so use larger ones. It finds out if there are dma-bufs by looking for
 * ib_umem_dmabuf_get in /proc/kallsyms: load the module ib_uverbs before.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define VERSION		FI_VERSION(1, 20)
#define LIMIT_S		20

/* One of the two buffers. */
struct buffer {
	const char *name;
	int fd;			/* -1 if it is not a dma-buf */
	unsigned char *map;
	struct fid_mr *mr;
};

/* One end of the connection. */
struct end {
	struct fid_ep *ep;
	struct fid_cq *cq;
};

static size_t size;
static struct fid_domain *domain;
static struct fid_eq *eq;

static void __attribute__((noreturn, format(printf, 1, 2)))
fail(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fputs("fi_dmabuf: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static void check(ssize_t ret, const char *what)
{
	if (ret < 0)
		fail("%s: %s", what, fi_strerror((int)-ret));
}

static void open_buffer(struct buffer *buf)
{
	char more;

	if (!strcmp(buf->name, "host")) {
		buf->fd = -1;
		buf->map = malloc(size);
		if (!buf->map)
			fail("malloc: %s", strerror(errno));
		return;
	}
	if (sscanf(buf->name, "fd:%d%c", &buf->fd, &more) != 1 || buf->fd < 0)
		fail("%s: neither fd:N nor host", buf->name);
	buf->map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, buf->fd, 0);
	if (buf->map == MAP_FAILED)
		fail("mmap of %s: %s", buf->name, strerror(errno));
}

/* Peers address a dma-buf by where it is mapped, both are at the start of a page. */
static void register_buffer(struct buffer *buf, uint64_t access)
{
	struct fi_mr_dmabuf dmabuf = { .fd = buf->fd, .len = size, .base_addr = buf->map };
	struct iovec iov = { .iov_base = buf->map, .iov_len = size };
	struct fi_mr_attr attr = { .iov_count = 1, .access = access };
	int ret;

	if (buf->fd < 0)
		attr.mr_iov = &iov;
	else
		attr.dmabuf = &dmabuf;
	ret = fi_mr_regattr(domain, &attr, buf->fd < 0 ? 0 : FI_MR_DMABUF, &buf->mr);
	if (ret)
		fail("fi_mr_regattr of %s: %s", buf->name, fi_strerror(-ret));
}

static void sync_buffer(struct buffer *buf, uint64_t flags)
{
	struct dma_buf_sync sync = { .flags = flags };
	int ret;

	if (buf->fd < 0)
		return;
	do {
		ret = ioctl(buf->fd, DMA_BUF_IOCTL_SYNC, &sync);
	} while (ret && (errno == EINTR || errno == EAGAIN));
	if (ret)
		fail("DMA_BUF_IOCTL_SYNC of %s: %s", buf->name, strerror(errno));
}

/* Byte i of a pattern; it is another one in each pattern. */
static unsigned char pattern(size_t i, unsigned int seed)
{
	return ((uint32_t)i * 2654435761u >> 24) + seed * 77;
}

/* Put a pattern into one buffer, and its inverse into the other. */
static void fill(struct buffer *source, struct buffer *sink, unsigned int seed)
{
	size_t i;

	sync_buffer(source, DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE);
	for (i = 0; i < size; i++)
		source->map[i] = pattern(i, seed);
	sync_buffer(source, DMA_BUF_SYNC_END | DMA_BUF_SYNC_WRITE);

	sync_buffer(sink, DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE);
	for (i = 0; i < size; i++)
		sink->map[i] = ~pattern(i, seed);
	sync_buffer(sink, DMA_BUF_SYNC_END | DMA_BUF_SYNC_WRITE);
}

static void verify(struct buffer *sink, unsigned int seed, const char *operation)
{
	unsigned char byte;
	size_t i;

	sync_buffer(sink, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ);
	for (i = 0; i < size; i++) {
		byte = sink->map[i];
		if (byte != pattern(i, seed))
			fail("%s: byte %zu of %s is %#x, not %#x", operation, i,
			     sink->name, byte, pattern(i, seed));
	}
	sync_buffer(sink, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ);
	printf("ok %s %zu bytes verified\n", operation, size);
}

/* Wait for one completion; yield, because it may need this very CPU. */
static void finish(struct end *end, const char *operation)
{
	const struct timespec pause = { .tv_nsec = 100000 };
	struct fi_cq_err_entry error = { 0 };
	const time_t start = time(NULL);
	struct fi_cq_entry entry;
	ssize_t ret;

	while ((ret = fi_cq_read(end->cq, &entry, 1)) == -FI_EAGAIN) {
		if (time(NULL) - start > LIMIT_S)
			fail("%s: nothing after %d s", operation, LIMIT_S);
		nanosleep(&pause, NULL);
	}
	if (ret == -FI_EAVAIL) {
		check(fi_cq_readerr(end->cq, &error, 0), "fi_cq_readerr");
		fail("%s: %s: %s", operation, fi_strerror(error.err),
		     fi_cq_strerror(end->cq, error.prov_errno, error.err_data,
				    NULL, 0));
	}
	check(ret, "fi_cq_read");
}

/* Wait for an event of the connection; return what came with a request. */
static struct fi_info *expect(uint32_t expected, const char *what)
{
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_cm_entry entry = { 0 };
	uint32_t event;
	ssize_t ret;

	ret = fi_eq_sread(eq, &event, &entry, sizeof(entry), LIMIT_S * 1000, 0);
	if (ret == -FI_EAVAIL) {
		check(fi_eq_readerr(eq, &error, 0), "fi_eq_readerr");
		fail("%s: %s", what, fi_strerror(error.err));
	}
	if (ret == -FI_EAGAIN)
		fail("%s: nothing after %d s", what, LIMIT_S);
	check(ret, what);
	if (event != expected)
		fail("%s: event %u instead of %u", what, event, expected);
	return entry.info;
}

static struct fi_info *get_info(const char *address, const char *port, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_info *info;
	int ret;

	if (!hints)
		fail("fi_allocinfo: %s", strerror(errno));
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR |
				      FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("verbs");
	ret = fi_getinfo(VERSION, address, port, flags, hints, &info);
	if (ret)
		fail("fi_getinfo for %s: %s", address, fi_strerror(-ret));
	fi_freeinfo(hints);
	return info;
}

static void open_end(struct end *end, struct fi_info *info)
{
	struct fi_cq_attr attr = { .size = 16, .format = FI_CQ_FORMAT_CONTEXT };

	check(fi_cq_open(domain, &attr, &end->cq, NULL), "fi_cq_open");
	check(fi_endpoint(domain, info, &end->ep, NULL), "fi_endpoint");
	check(fi_ep_bind(end->ep, &eq->fid, 0), "fi_ep_bind");
	check(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	check(fi_enable(end->ep), "fi_enable");
}

/* Have both ends connected, by way of a port that is free. */
static void connect_ends(struct end *near, struct end *far, struct fid_fabric *fabric,
			 struct fi_info *local, const char *address)
{
	struct sockaddr_in name;
	size_t len = sizeof(name);
	struct fi_info *info;
	struct fid_pep *pep;
	char port[8];

	check(fi_passive_ep(fabric, local, &pep, NULL), "fi_passive_ep");
	check(fi_pep_bind(pep, &eq->fid, 0), "fi_pep_bind");
	check(fi_listen(pep), "fi_listen");
	check(fi_getname(&pep->fid, &name, &len), "fi_getname");

	snprintf(port, sizeof(port), "%u", ntohs(name.sin_port));
	info = get_info(address, port, 0);
	open_end(near, info);
	check(fi_connect(near->ep, info->dest_addr, NULL, 0), "fi_connect");
	fi_freeinfo(info);

	info = expect(FI_CONNREQ, "connection request");
	open_end(far, info);
	check(fi_accept(far->ep, NULL, 0), "fi_accept");
	fi_freeinfo(info);
	expect(FI_CONNECTED, "connection");
	expect(FI_CONNECTED, "connection");
	check(fi_close(&pep->fid), "fi_close of the passive endpoint");
}

/*
 * A completion means that the device of the peer has acknowledged: verbs has no
 * FI_DELIVERY_COMPLETE, and other providers may have more to do for far then.
 */
static void transfer(struct end *near, struct end *far, struct buffer *from,
		     struct buffer *to)
{
	const uint64_t key = fi_mr_key(to->mr);
	const uint64_t address = (uintptr_t)to->map;
	void *near_desc = fi_mr_desc(from->mr);
	void *far_desc = fi_mr_desc(to->mr);

	fill(from, to, 1);
	check(fi_write(near->ep, from->map, size, near_desc, 0, address, key, NULL),
	      "fi_write");
	finish(near, "write");
	verify(to, 1, "write");

	fill(to, from, 2);
	check(fi_read(near->ep, from->map, size, near_desc, 0, address, key, NULL),
	      "fi_read");
	finish(near, "read");
	verify(from, 2, "read");

	fill(from, to, 3);
	check(fi_recv(far->ep, to->map, size, far_desc, 0, NULL), "fi_recv");
	check(fi_send(near->ep, from->map, size, near_desc, 0, NULL), "fi_send");
	finish(near, "send");
	finish(far, "recv");
	verify(to, 3, "send");
}

static void close_all(struct fid **fids)
{
	for (; *fids; fids++)
		check(fi_close(*fids), "fi_close");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "address", required_argument, NULL, 'a' },
		{ "size", required_argument, NULL, 's' },
		{ "from", required_argument, NULL, 'f' },
		{ "to", required_argument, NULL, 't' },
		{ }
	};
	struct buffer from = { 0 }, to = { 0 };
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
	const char *address = NULL;
	struct fid_fabric *fabric;
	struct fi_info *info;
	struct end near, far;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'a')
			address = optarg;
		else if (option == 's')
			size = strtoul(optarg, NULL, 0);
		else if (option == 'f')
			from.name = optarg;
		else if (option == 't')
			to.name = optarg;
		else
			return 1;
	}
	if (!address || !size || !from.name || !to.name || optind != argc)
		fail("usage: --address A.B.C.D --size BYTES --from fd:N|host --to fd:N|host");

	open_buffer(&from);
	open_buffer(&to);
	info = get_info(address, NULL, FI_SOURCE);
	if (size > info->ep_attr->max_msg_size)
		fail("%s takes up to %zu bytes", info->domain_attr->name,
		     info->ep_attr->max_msg_size);
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_eq_open(fabric, &eq_attr, &eq, NULL), "fi_eq_open");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");

	register_buffer(&from, FI_SEND | FI_WRITE | FI_READ);
	register_buffer(&to, FI_RECV | FI_REMOTE_WRITE | FI_REMOTE_READ);
	connect_ends(&near, &far, fabric, info, address);
	transfer(&near, &far, &from, &to);

	close_all((struct fid *[]){ &near.ep->fid, &far.ep->fid, &near.cq->fid,
		  &far.cq->fid, &from.mr->fid, &to.mr->fid, &domain->fid, &eq->fid,
		  &fabric->fid, NULL });
	fi_freeinfo(info);
	return 0;
}
