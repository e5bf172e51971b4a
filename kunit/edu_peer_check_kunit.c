// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit suite for the check of scatter tables by drivers/misc/edu_peer.
 *
 * The tests of exporters rely on edu_peer to refuse a wrong table. This suite
 * is an exporter that gives edu_peer a table of the test's choice, through the
 * character device, as programs do. Each bad table has one fault, and for each
 * fault there is a good table that is as close to it as possible. No device
 * uses an address of these tables: edu_peer maps and does not transfer.
 */
#include <kunit/test.h>
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pid_namespace.h>
#include <linux/scatterlist.h>
#include <linux/sched/task.h>
#include <linux/sizes.h>
#include <linux/uaccess.h>
#include <uapi/misc/edu_peer.h>

#define EDU_VENDOR_ID		0x1234
#define EDU_DEVICE_ID		0x11e8

#define MAX_ENTRIES		4
/* An address far from the memory of the driver. */
#define FAR			BIT_ULL(40)
#define LAST_PAGE		(U64_MAX - PAGE_SIZE + 1)

/**
 * struct entry - One entry of a scatter table
 * @address: DMA address
 * @length: Length in bytes
 */
struct entry {
	u64 address;
	u32 length;
};

/**
 * struct table - A scatter table of a buffer
 * @name: The property that the table is there for
 * @size: Size of the buffer in bytes
 * @count: Number of entries
 * @entries: The entries
 */
struct table {
	const char *name;
	u64 size;
	unsigned int count;
	struct entry entries[MAX_ENTRIES];
};

static const struct table good_tables[] = {
	{ "one page", PAGE_SIZE, 1, { { FAR, PAGE_SIZE } } },
	{ "in any order", 3 * PAGE_SIZE, 3,
	  { { FAR + 2 * PAGE_SIZE, PAGE_SIZE }, { FAR, PAGE_SIZE }, { FAR + SZ_1M, PAGE_SIZE } } },
	{ "neighbours", 3 * PAGE_SIZE, 2,
	  { { FAR, 2 * PAGE_SIZE }, { FAR + 2 * PAGE_SIZE, PAGE_SIZE } } },
	{ "the last page but one", PAGE_SIZE, 1, { { LAST_PAGE - PAGE_SIZE, PAGE_SIZE } } },
	{ "4 GiB of others", SZ_4G, 2,
	  { { FAR, SZ_2G }, { FAR + SZ_2G, SZ_2G } } },
};

static const struct table bad_tables[] = {
	{ "an empty entry", PAGE_SIZE, 2,
	  { { FAR, PAGE_SIZE }, { FAR + SZ_1M, 0 } } },
	{ "an empty entry first", PAGE_SIZE, 2,
	  { { FAR + SZ_1M, 0 }, { FAR, PAGE_SIZE } } },
	{ "starts inside of a page", 2 * PAGE_SIZE, 2,
	  { { FAR, PAGE_SIZE }, { FAR + SZ_1M + 1, PAGE_SIZE } } },
	{ "ends inside of a page", 2 * PAGE_SIZE, 2,
	  { { FAR, PAGE_SIZE + PAGE_SIZE / 2 }, { FAR + SZ_1M, PAGE_SIZE / 2 } } },
	{ "passes the end of the address space", 2 * PAGE_SIZE, 1,
	  { { LAST_PAGE, 2 * PAGE_SIZE } } },
	{ "a page too few", 2 * PAGE_SIZE, 1, { { FAR, PAGE_SIZE } } },
	{ "a page too many", 2 * PAGE_SIZE, 2,
	  { { FAR, 2 * PAGE_SIZE }, { FAR + SZ_1M, PAGE_SIZE } } },
	{ "the same twice", 2 * PAGE_SIZE, 2,
	  { { FAR, PAGE_SIZE }, { FAR, PAGE_SIZE } } },
	{ "overlap by a page", 4 * PAGE_SIZE, 2,
	  { { FAR + PAGE_SIZE, 2 * PAGE_SIZE }, { FAR, 2 * PAGE_SIZE } } },
	{ "one inside of another", 4 * PAGE_SIZE, 3,
	  { { FAR + SZ_1M, PAGE_SIZE }, { FAR + PAGE_SIZE, PAGE_SIZE }, { FAR, 2 * PAGE_SIZE } } },
	/* The DMA buffer of edu_peer is below 4 GiB, with or without IOMMU. */
	{ "memory of the driver", SZ_4G, 2,
	  { { 0, SZ_2G }, { SZ_2G, SZ_2G } } },
};

static void table_name(const struct table *table, char *name)
{
	strscpy(name, table->name, KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(good, good_tables, table_name);
KUNIT_ARRAY_PARAM(bad, bad_tables, table_name);

/**
 * struct exporter - The exporter, and a file of edu_peer
 * @table: The table that the next mapping gets
 * @maps: Number of mappings that were made
 * @unmaps: Number of mappings that were unmapped
 * @buf: The dma-buf
 * @file: The file of edu_peer
 * @arg: Memory of a process, for arguments
 */
struct exporter {
	const struct table *table;
	unsigned int maps;
	unsigned int unmaps;
	struct dma_buf *buf;
	struct file *file;
	void __user *arg;
};

static struct sg_table *exporter_map(struct dma_buf_attachment *attach,
				     enum dma_data_direction dir)
{
	struct exporter *exporter = attach->dmabuf->priv;
	const struct table *table = exporter->table;
	struct sg_table *sgt;
	struct scatterlist *sg;
	unsigned int i;
	int ret;

	sgt = kzalloc_obj(*sgt);
	if (!sgt)
		return ERR_PTR(-ENOMEM);

	ret = sg_alloc_table(sgt, table->count, GFP_KERNEL);
	if (ret) {
		kfree(sgt);
		return ERR_PTR(ret);
	}

	for_each_sg(sgt->sgl, sg, table->count, i) {
		sg_dma_address(sg) = table->entries[i].address;
		sg_dma_len(sg) = table->entries[i].length;
	}
	sgt->nents = table->count;
	exporter->maps++;
	return sgt;
}

static void exporter_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
			   enum dma_data_direction dir)
{
	struct exporter *exporter = attach->dmabuf->priv;

	exporter->unmaps++;
	sg_free_table(sgt);
	kfree(sgt);
}

static void exporter_release(struct dma_buf *buf)
{
}

static const struct dma_buf_ops exporter_ops = {
	.map_dma_buf = exporter_map,
	.unmap_dma_buf = exporter_unmap,
	.release = exporter_release,
};

static long call(struct exporter *exporter, unsigned int cmd, unsigned long arg)
{
	return exporter->file->f_op->unlocked_ioctl(exporter->file, cmd, arg);
}

static void exporter_put(void *data)
{
	struct exporter *exporter = data;

	dma_buf_put(exporter->buf);
	/* The module has to outlive the file, which a work item puts. */
	flush_delayed_fput();
}

static void file_put(void *data)
{
	fput(data);
	flush_delayed_fput();
}

/* Opens a file as init does: the root of a kernel thread has no /dev. */
static struct file *open_device(const char *path)
{
	struct task_struct *init = init_pid_ns.child_reaper;
	struct file *file;
	struct path root;

	task_lock(init);
	get_fs_root(init->fs, &root);
	task_unlock(init);
	file = file_open_root(&root, path, O_RDWR, 0);
	path_put(&root);
	return file;
}

/* Exports a buffer that is mapped by @table, and attaches edu_peer to it. */
static struct exporter *attach(struct kunit *test, const struct table *table,
			       enum edu_peer_mode mode)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct edu_peer_attach request = { .mode = mode };
	struct exporter *exporter;
	struct pci_dev *pdev;
	char path[64];
	int fd;

	KUNIT_ASSERT_EQ(test, kunit_attach_mm(), 0);
	exporter = kunit_kzalloc(test, sizeof(*exporter), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, exporter);
	exporter->table = table;
	exporter->arg = (void __user *)kunit_vm_mmap(test, NULL, 0, PAGE_SIZE,
						     PROT_READ | PROT_WRITE,
						     MAP_ANONYMOUS | MAP_PRIVATE, 0);
	KUNIT_ASSERT_NOT_NULL(test, (__force void *)exporter->arg);

	pdev = pci_get_device(EDU_VENDOR_ID, EDU_DEVICE_ID, NULL);
	if (!pdev)
		kunit_skip(test, "needs QEMU's edu");
	scnprintf(path, sizeof(path), "dev/edu-peer-%s", pci_name(pdev));
	pci_dev_put(pdev);
	exporter->file = open_device(path);
	KUNIT_ASSERT_NOT_ERR_OR_NULL_MSG(test, exporter->file, "%s: %pe", path, exporter->file);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, file_put, exporter->file), 0);

	info.ops = &exporter_ops;
	info.size = table->size;
	info.priv = exporter;
	exporter->buf = dma_buf_export(&info);
	KUNIT_ASSERT_NOT_ERR_OR_NULL(test, exporter->buf);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, exporter_put, exporter), 0);

	get_dma_buf(exporter->buf);
	fd = dma_buf_fd(exporter->buf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(exporter->buf);
	KUNIT_ASSERT_GE(test, fd, 0);
	request.fd = fd;
	KUNIT_EXPECT_EQ(test, copy_to_user(exporter->arg, &request, sizeof(request)), 0);
	KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_ATTACH, (unsigned long)exporter->arg), 0);
	KUNIT_EXPECT_EQ(test, close_fd(fd), 0);
	return exporter;
}

static void detach(struct kunit *test, struct exporter *exporter)
{
	KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_DETACH, 0), 0);
	KUNIT_EXPECT_EQ(test, exporter->maps, exporter->unmaps);
}

static struct edu_peer_status status(struct kunit *test, struct exporter *exporter)
{
	struct edu_peer_status status = {};

	KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_STATUS, (unsigned long)exporter->arg), 0);
	KUNIT_EXPECT_EQ(test, copy_from_user(&status, exporter->arg, sizeof(status)), 0);
	return status;
}

static void map_in_each_class(struct kunit *test, const struct table *table, bool good)
{
	static const enum edu_peer_mode modes[] = {
		EDU_PEER_MODE_STATIC, EDU_PEER_MODE_DYNAMIC, EDU_PEER_MODE_PINNED,
		EDU_PEER_MODE_REVOCABLE, EDU_PEER_MODE_NO_P2P,
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(modes); i++) {
		struct exporter *exporter = attach(test, table, modes[i]);
		u32 mapped;

		if (modes[i] == EDU_PEER_MODE_PINNED || modes[i] == EDU_PEER_MODE_REVOCABLE)
			KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_PIN, 0), 0);

		KUNIT_EXPECT_EQ_MSG(test, call(exporter, EDU_PEER_IOC_MAP, 0),
				    good ? 0 : -EBADMSG, "class %d", modes[i]);
		KUNIT_EXPECT_EQ(test, exporter->maps, 1);
		/* A refused table is unmapped at once, and is not counted. */
		KUNIT_EXPECT_EQ(test, exporter->unmaps, good ? 0 : 1);
		mapped = status(test, exporter).flags & EDU_PEER_STATUS_MAPPED;
		KUNIT_EXPECT_EQ(test, mapped, good ? EDU_PEER_STATUS_MAPPED : 0);
		KUNIT_EXPECT_EQ(test, status(test, exporter).maps, good ? 1 : 0);
		detach(test, exporter);
	}
}

static void good_tables_are_taken(struct kunit *test)
{
	map_in_each_class(test, test->param_value, true);
}

static void bad_tables_are_refused(struct kunit *test)
{
	map_in_each_class(test, test->param_value, false);
}

/* A transfer without a mapping makes one, and checks its table first. */
static void a_transfer_looks_at_the_table(struct kunit *test)
{
	struct edu_peer_transfer transfer = {
		.length = SZ_2K,
		.direction = EDU_PEER_DIRECTION_READ,
	};
	struct edu_peer_submit submit = {
		.length = SZ_2K,
		.direction = EDU_PEER_DIRECTION_READ,
	};
	struct exporter *exporter;

	exporter = attach(test, test->param_value, EDU_PEER_MODE_DYNAMIC);
	transfer.data = (unsigned long)exporter->arg + 256;
	KUNIT_EXPECT_EQ(test, copy_to_user(exporter->arg, &transfer, sizeof(transfer)), 0);
	KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_TRANSFER, (unsigned long)exporter->arg),
			-EBADMSG);
	KUNIT_EXPECT_EQ(test, exporter->maps, 1);
	KUNIT_EXPECT_EQ(test, exporter->unmaps, 1);

	KUNIT_EXPECT_EQ(test, copy_to_user(exporter->arg, &submit, sizeof(submit)), 0);
	KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_SUBMIT, (unsigned long)exporter->arg),
			-EBADMSG);
	KUNIT_EXPECT_EQ(test, exporter->maps, 2);
	KUNIT_EXPECT_EQ(test, exporter->unmaps, 2);
	detach(test, exporter);
}

/* A table is checked in each mapping, not only in the first one. */
static void each_mapping_is_looked_at(struct kunit *test)
{
	static const struct table bad = {
		"an unaligned page", PAGE_SIZE, 1, { { FAR + SZ_1K, PAGE_SIZE } }
	};
	struct exporter *exporter = attach(test, &good_tables[0], EDU_PEER_MODE_DYNAMIC);

	for (unsigned int i = 1; i < 4; i++) {
		exporter->table = &good_tables[0];
		KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_MAP, 0), 0);

		/* A mapping is checked once, until it is invalidated. */
		exporter->table = &bad;
		KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_MAP, 0), 0);
		dma_resv_lock(exporter->buf->resv, NULL);
		dma_buf_invalidate_mappings(exporter->buf);
		dma_resv_unlock(exporter->buf->resv);
		KUNIT_EXPECT_EQ(test, status(test, exporter).invalidations, i);
		KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_MAP, 0), -EBADMSG);
		KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_UNMAP, 0), -EINVAL);
		KUNIT_EXPECT_EQ(test, status(test, exporter).maps, i);
		KUNIT_EXPECT_EQ(test, exporter->maps, exporter->unmaps);
	}
	detach(test, exporter);
}

/* Userspace is shown the table that the exporter made. */
static void the_table_is_shown(struct kunit *test)
{
	const struct table *table = &good_tables[1];
	struct exporter *exporter = attach(test, table, EDU_PEER_MODE_DYNAMIC);
	struct edu_peer_segment segments[MAX_ENTRIES] = {};
	struct edu_peer_table request = {
		.segments = (unsigned long)exporter->arg + SZ_1K,
		.count = MAX_ENTRIES,
	};

	KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_MAP, 0), 0);
	KUNIT_EXPECT_EQ(test, copy_to_user(exporter->arg, &request, sizeof(request)), 0);
	KUNIT_EXPECT_EQ(test, call(exporter, EDU_PEER_IOC_TABLE, (unsigned long)exporter->arg), 0);
	KUNIT_EXPECT_EQ(test, copy_from_user(&request, exporter->arg, sizeof(request)), 0);
	KUNIT_EXPECT_EQ(test, request.count, table->count);
	KUNIT_EXPECT_EQ(test, copy_from_user(segments, exporter->arg + SZ_1K, sizeof(segments)), 0);
	/* The order is that of the buffer, although the check sorts. */
	for (unsigned int i = 0; i < table->count; i++) {
		KUNIT_EXPECT_EQ(test, segments[i].dma_address, table->entries[i].address);
		KUNIT_EXPECT_EQ(test, segments[i].length, table->entries[i].length);
	}
	detach(test, exporter);
}

static struct kunit_case edu_peer_check_cases[] = {
	KUNIT_CASE_PARAM(good_tables_are_taken, good_gen_params),
	KUNIT_CASE_PARAM(bad_tables_are_refused, bad_gen_params),
	KUNIT_CASE_PARAM(a_transfer_looks_at_the_table, bad_gen_params),
	KUNIT_CASE(each_mapping_is_looked_at),
	KUNIT_CASE(the_table_is_shown),
	{}
};

static struct kunit_suite edu_peer_check_suite = {
	.name = "edu_peer_check",
	.test_cases = edu_peer_check_cases,
};

kunit_test_suite(edu_peer_check_suite);

MODULE_DESCRIPTION("KUnit suite for the check of scatter tables by edu_peer");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
MODULE_IMPORT_NS("EXPORTED_FOR_KUNIT_TESTING");
