// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit suite for drivers/dma-buf/dma-buf-mapping.c.
 *
 * dma_buf_phys_vec_to_sgt() maps only the MMIO of one PCI device for another
 * one, and the path between the two devices decides how. So the suite needs two
 * real devices, and uses those of QEMU: BAR 2 of an ivshmem-plain is the memory,
 * an edu is the peer. The suite starts no DMA and does not access the content of
 * the BAR. The checks depend on the machine:
 *
 *  - behind a translating IOMMU every page of every mapping is looked up in the
 *    page tables of the peer;
 *  - by bus address, or with no IOMMU, every address is compared with the BAR;
 *  - where the path is not supported, the mapping has to be refused.
 *
 * Failures are injected: of allocations by fail_nth, which needs
 * ignore-gfp-wait of failslab to be off, and of mappings by ranges that are too
 * far away for the IOMMU or for the peer.
 *
 * The devices may have drivers or not. An ivshmem with a driver must have called
 * pcim_p2pdma_init(); one without is bound for the time of the suite.
 */
#include <kunit/resource.h>
#include <kunit/test.h>
#include <linux/completion.h>
#include <linux/dma-buf-mapping.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/file.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pci-p2pdma.h>
#include <linux/pci.h>
#include <linux/prandom.h>
#include <linux/random.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/vmstat.h>

#define IVSHMEM_DEVICE_ID	0x1110
#define EDU_VENDOR_ID		0x1234
#define EDU_DEVICE_ID		0x11e8

#define VRAM_BAR		2

#define MAX_RANGES		300

static unsigned int seed;
module_param(seed, uint, 0444);
MODULE_PARM_DESC(seed, "Seed of the random tables (default: a new one each time)");

static unsigned int tables = 10000;
module_param(tables, uint, 0444);
MODULE_PARM_DESC(tables, "Number of random tables");

/* Both devices are locked for the suite: their drivers do not change. */
static struct pci_dev *vram;
static struct pci_dev *peer;

/**
 * struct bar_range - A range of BAR 2, in pages
 * @first: First page
 * @count: Number of pages
 */
struct bar_range {
	unsigned int first;
	unsigned int count;
};

/**
 * struct mapping - One dma-buf, exported over BAR 2 and mapped by the peer
 * @provider: Provider of BAR 2
 * @vec: Ranges of the buffer
 * @nr_ranges: Number of entries of @vec in use
 * @size: Size of the buffer in bytes
 * @buf: The dma-buf
 * @attach: Attachment of the peer
 * @sgt: Table that the peer got; the core may hand out a copy
 * @own: Table that the exporter made
 * @released: Completed by the release of @buf
 */
struct mapping {
	struct p2pdma_provider *provider;
	struct phys_vec vec[MAX_RANGES];
	size_t nr_ranges;
	size_t size;
	struct dma_buf *buf;
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	struct sg_table *own;
	struct completion released;
};

static struct sg_table *vram_map(struct dma_buf_attachment *attach,
				 enum dma_data_direction dir)
{
	struct mapping *m = attach->dmabuf->priv;

	m->own = dma_buf_phys_vec_to_sgt(attach, m->provider, m->vec,
					 m->nr_ranges, m->size, dir);
	return m->own;
}

static void vram_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
		       enum dma_data_direction dir)
{
	dma_buf_free_sgt(attach, sgt, dir);
}

static void vram_release(struct dma_buf *buf)
{
	struct mapping *m = buf->priv;

	complete(&m->released);
}

static const struct dma_buf_ops vram_ops = {
	.map_dma_buf = vram_map,
	.unmap_dma_buf = vram_unmap,
	.release = vram_release,
};

static void peer_invalidate(struct dma_buf_attachment *attach)
{
}

static const struct dma_buf_attach_ops peer_ops = {
	.allow_peer2peer = true,
	.invalidate_mappings = peer_invalidate,
};

static void mapping_put(void *data)
{
	struct mapping *m = data;

	dma_buf_put(m->buf);
	/* A kernel thread puts files by a work item: run it now. */
	flush_delayed_fput();
	wait_for_completion(&m->released);
}

static void mapping_detach(void *data)
{
	struct mapping *m = data;

	dma_buf_detach(m->buf, m->attach);
}

static void mapping_unmap(void *data)
{
	struct mapping *m = data;

	dma_buf_unmap_attachment_unlocked(m->attach, m->sgt, DMA_BIDIRECTIONAL);
}

/* Exports the ranges and attaches the peer. KUnit undoes all of it. */
static struct mapping *mapping_attach(struct kunit *test,
				      const struct bar_range *ranges,
				      size_t nr_ranges)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct mapping *m;
	size_t i;

	KUNIT_ASSERT_LE(test, nr_ranges, MAX_RANGES);

	m = kunit_kzalloc(test, sizeof(*m), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, m);

	init_completion(&m->released);
	m->provider = pcim_p2pdma_provider(vram, VRAM_BAR);
	KUNIT_ASSERT_NOT_NULL(test, m->provider);

	for (i = 0; i < nr_ranges; i++) {
		size_t start = (size_t)ranges[i].first << PAGE_SHIFT;
		size_t len = (size_t)ranges[i].count << PAGE_SHIFT;

		KUNIT_ASSERT_LE(test, start + len,
				pci_resource_len(vram, VRAM_BAR));

		m->vec[i].paddr = pci_resource_start(vram, VRAM_BAR) + start;
		m->vec[i].len = len;
		m->size += len;
	}
	m->nr_ranges = nr_ranges;

	info.ops = &vram_ops;
	info.size = m->size;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = m;
	m->buf = dma_buf_export(&info);
	KUNIT_ASSERT_NOT_ERR_OR_NULL(test, m->buf);
	KUNIT_ASSERT_EQ(test, 0, kunit_add_action_or_reset(test, mapping_put, m));

	m->attach = dma_buf_dynamic_attach(m->buf, &peer->dev, &peer_ops, m);
	KUNIT_ASSERT_NOT_ERR_OR_NULL(test, m->attach);
	KUNIT_ASSERT_EQ(test, 0,
			kunit_add_action_or_reset(test, mapping_detach, m));

	return m;
}

/* As mapping_attach(), and maps. Skips the test if there is no path. */
static struct mapping *mapping_map(struct kunit *test,
				   const struct bar_range *ranges,
				   size_t nr_ranges)
{
	struct mapping *m;

	if (pci_p2pdma_distance(vram, &peer->dev, false) < 0)
		kunit_skip(test, "no peer to peer path between %s and %s",
			   pci_name(vram), pci_name(peer));

	m = mapping_attach(test, ranges, nr_ranges);

	m->sgt = dma_buf_map_attachment_unlocked(m->attach, DMA_BIDIRECTIONAL);
	if (IS_ERR(m->sgt))
		KUNIT_FAIL_AND_ABORT(test, "mapping %zu ranges failed: %pe\n",
				     nr_ranges, m->sgt);
	KUNIT_ASSERT_EQ(test, 0,
			kunit_add_action_or_reset(test, mapping_unmap, m));

	return m;
}

/* Returns the bus address of a page, which the peer uses without an IOMMU. */
static dma_addr_t mapping_bus_addr(phys_addr_t paddr)
{
	return paddr - pci_resource_start(vram, VRAM_BAR) +
	       pci_bus_address(vram, VRAM_BAR);
}

/*
 * Does the mapping go through an IOMMU? No IOVA is ever equal to the bus
 * address of a BAR: the windows of the host bridges are reserved.
 */
static bool mapping_uses_iova(struct mapping *m)
{
	return sg_dma_address(m->sgt->sgl) != mapping_bus_addr(m->vec[0].paddr);
}

/* Returns whether the path between both devices stays below a root port. */
static bool below_one_port(void)
{
	return pcie_find_root_port(vram) &&
	       pcie_find_root_port(vram) == pcie_find_root_port(peer);
}

static const struct bar_range one_page = { 0, 1 };

struct shape {
	const char *desc;
	size_t nr_ranges;
	struct bar_range ranges[6];
};

static const struct shape shapes[] = {
	{
		.desc = "one page",
		.nr_ranges = 1,
		.ranges = { { 5, 1 } },
	}, {
		.desc = "one range",
		.nr_ranges = 1,
		.ranges = { { 3, 64 } },
	}, {
		.desc = "two pages apart",
		.nr_ranges = 2,
		.ranges = { { 0, 1 }, { 2, 1 } },
	}, {
		.desc = "two pages in a row",
		.nr_ranges = 2,
		.ranges = { { 8, 1 }, { 9, 1 } },
	}, {
		.desc = "backwards",
		.nr_ranges = 3,
		.ranges = { { 9, 1 }, { 6, 1 }, { 3, 1 } },
	}, {
		.desc = "unequal lengths",
		.nr_ranges = 6,
		.ranges = { { 7, 1 }, { 16, 3 }, { 40, 2 }, { 64, 17 },
			    { 12, 1 }, { 100, 5 } },
	}, {
		/* The offset of the last range rules out a 2 MiB page */
		.desc = "large and small",
		.nr_ranges = 3,
		.ranges = { { SZ_2M / PAGE_SIZE, SZ_2M / PAGE_SIZE }, { 1, 1 },
			    { SZ_4M / PAGE_SIZE, SZ_2M / PAGE_SIZE } },
	},
};

KUNIT_ARRAY_PARAM_DESC(shape, shapes, desc);

/* Returns the physical address behind an address of the peer, 0 if none. */
static phys_addr_t lookup(dma_addr_t addr)
{
	return iommu_iova_to_phys(iommu_get_domain_for_dev(&peer->dev), addr);
}

/* The longest entry for an importer that sets no limit. */
#define MAX_ENTRY		PAGE_ALIGN_DOWN(UINT_MAX)

/*
 * Checks that every page of the ranges is reached at its place in the table.
 * Each entry consists of whole pages, and is not longer than max_len. Returns the
 * number of entries.
 */
static unsigned int check_table(struct kunit *test, const struct phys_vec *vec,
				size_t nr_ranges, struct sg_table *sgt,
				size_t max_len, bool uses_iova)
{
	size_t range = 0, offset = 0, pos;
	struct scatterlist *sg, *last = NULL;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i) {
		KUNIT_ASSERT_TRUE(test, PAGE_ALIGNED(sg_dma_len(sg)));
		KUNIT_ASSERT_GT(test, sg_dma_len(sg), 0);
		KUNIT_ASSERT_LE(test, sg_dma_len(sg), max_len);

		for (pos = 0; pos < sg_dma_len(sg); pos += PAGE_SIZE) {
			dma_addr_t addr = sg_dma_address(sg) + pos;
			phys_addr_t want;

			KUNIT_ASSERT_LT(test, range, nr_ranges);
			want = vec[range].paddr + offset;
			if (uses_iova)
				KUNIT_ASSERT_EQ_MSG(test, want, lookup(addr),
						    "page %zu of range %zu\n",
						    offset >> PAGE_SHIFT, range);
			else
				KUNIT_ASSERT_EQ_MSG(test, mapping_bus_addr(want),
						    addr,
						    "page %zu of range %zu\n",
						    offset >> PAGE_SHIFT, range);

			offset += PAGE_SIZE;
			if (offset == vec[range].len) {
				offset = 0;
				range++;
			}
		}
		last = sg;
	}
	KUNIT_ASSERT_EQ(test, range, nr_ranges);
	KUNIT_ASSERT_NOT_NULL(test, last);
	KUNIT_ASSERT_TRUE(test, sg_is_last(last));

	return i;
}

/*
 * Every page of the buffer is reached at its place in the mapping, and nothing
 * is left in the page tables afterwards.
 *
 * Catches a range that is linked at the wrong offset of the IOVA: Intel's and
 * AMD's page tables then refuse the second range, virtio-iommu's do not.
 */
static void every_page_in_place(struct kunit *test)
{
	const struct shape *shape = test->param_value;
	struct iommu_domain *domain = iommu_get_domain_for_dev(&peer->dev);
	struct mapping *m;
	unsigned int nents;
	dma_addr_t iova;
	bool uses_iova;
	size_t pos;

	m = mapping_map(test, shape->ranges, shape->nr_ranges);
	uses_iova = mapping_uses_iova(m);
	iova = sg_dma_address(m->sgt->sgl);

	if (uses_iova) {
		KUNIT_ASSERT_NOT_NULL(test, domain);
		KUNIT_ASSERT_TRUE(test, iommu_is_dma_domain(domain));
	}

	/* Importers recognise by this that there is no CPU list */
	KUNIT_EXPECT_EQ(test, m->own->orig_nents, 0);

	nents = check_table(test, m->vec, m->nr_ranges, m->sgt, MAX_ENTRY, uses_iova);
	/* One IOVA area spans the buffer */
	KUNIT_EXPECT_EQ(test, nents, uses_iova ? 1 : m->nr_ranges);

	kunit_release_action(test, mapping_unmap, m);

	if (!uses_iova)
		return;

	for (pos = 0; pos < m->size; pos += PAGE_SIZE)
		KUNIT_ASSERT_EQ_MSG(test, lookup(iova + pos), 0,
				    "page %zu is still mapped\n", pos >> PAGE_SHIFT);
}

/*
 * A scatterlist of more than SG_MAX_SINGLE_ALLOC entries is a chain, of which
 * every link but the last is a page of the page allocator. The test takes a
 * reference to each of these pages, which must be the only one after the unmap.
 */
static void long_scatterlist_is_freed(struct kunit *test)
{
	struct page *pages[4];
	unsigned int left, i, nr_pages = 0;
	struct bar_range *ranges;
	struct scatterlist *sg;
	struct mapping *m;

	if (MAX_RANGES <= SG_MAX_SINGLE_ALLOC)
		kunit_skip(test, "a page has room for the table");

	ranges = kunit_kcalloc(test, MAX_RANGES, sizeof(*ranges), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, ranges);
	for (i = 0; i < MAX_RANGES; i++) {
		ranges[i].first = 2 * i;
		ranges[i].count = 1;
	}

	m = mapping_map(test, ranges, MAX_RANGES);
	if (mapping_uses_iova(m))
		kunit_skip(test, "one IOVA spans the buffer, the table is short");
	KUNIT_ASSERT_EQ(test, m->own->nents, MAX_RANGES);

	sg = m->own->sgl;
	for (left = m->own->nents; left > SG_MAX_SINGLE_ALLOC;
	     left -= SG_MAX_SINGLE_ALLOC - 1) {
		KUNIT_ASSERT_LT(test, nr_pages, ARRAY_SIZE(pages));
		KUNIT_ASSERT_TRUE(test, PAGE_ALIGNED(sg));
		pages[nr_pages] = virt_to_page(sg);
		get_page(pages[nr_pages++]);
		sg = sg_chain_ptr(&sg[SG_MAX_SINGLE_ALLOC - 1]);
	}

	kunit_release_action(test, mapping_unmap, m);
	for (i = 0; i < nr_pages; i++) {
		KUNIT_EXPECT_EQ_MSG(test, page_count(pages[i]), 1,
				    "link %u of the scatterlist leaked\n", i);
		put_page(pages[i]);
	}
	KUNIT_EXPECT_GE(test, nr_pages, 1);
}

/*
 * A short scatterlist comes from kmalloc(), so that a leak shows in the
 * statistics only: with one entry of 32 bytes in each cycle, 256 pages of slab.
 * The counter is exact to 125 pages for each CPU whose share is not summed up
 * yet, and only the CPU that runs the test changes it by much: 0 to 20 pages
 * were measured without the leak. The limit, half of the leak, is far from both.
 */
static void short_scatterlist_is_freed(struct kunit *test)
{
	const unsigned int cycles = 1 << 15;
	const long leak = cycles * sizeof(struct scatterlist) >> PAGE_SHIFT;
	unsigned long before, after;
	struct mapping *m;
	unsigned int i;

	/*
	 * Freed memory stays allocated for a while in the quarantine of KASAN, or
	 * as objects of kmemleak, which finds the leak itself.
	 */
	if (IS_ENABLED(CONFIG_KASAN_GENERIC) ||
	    IS_ENABLED(CONFIG_DEBUG_KMEMLEAK))
		kunit_skip(test, "memory is not given back at once");
	if (PAGE_SIZE > SZ_4K)
		kunit_skip(test, "the statistics do not show the leak");

	m = mapping_map(test, &one_page, 1);
	kunit_release_action(test, mapping_unmap, m);

	before = global_node_page_state_pages(NR_SLAB_UNRECLAIMABLE_B);
	for (i = 0; i < cycles; i++) {
		struct sg_table *sgt;

		sgt = dma_buf_map_attachment_unlocked(m->attach,
						      DMA_BIDIRECTIONAL);
		KUNIT_ASSERT_NOT_ERR_OR_NULL(test, sgt);
		dma_buf_unmap_attachment_unlocked(m->attach, sgt,
						  DMA_BIDIRECTIONAL);
		cond_resched();
	}
	after = global_node_page_state_pages(NR_SLAB_UNRECLAIMABLE_B);

	kunit_info(test, "%u cycles: slab %lu pages before, %lu after\n", cycles,
		   before, after);
	KUNIT_EXPECT_LT(test, (long)(after - before), leak / 2);
}

/* Without a path the mapping is refused, but the attachment is not. */
static void unsupported_path_is_refused(struct kunit *test)
{
	static const struct bar_range ranges[] = { { 0, 1 }, { 2, 1 } };
	struct mapping *m;

	if (pci_p2pdma_distance(vram, &peer->dev, false) >= 0)
		kunit_skip(test, "there is a peer to peer path");

	m = mapping_attach(test, ranges, ARRAY_SIZE(ranges));
	m->sgt = dma_buf_map_attachment_unlocked(m->attach, DMA_BIDIRECTIONAL);
	KUNIT_EXPECT_EQ(test, PTR_ERR_OR_ZERO(m->sgt), -EINVAL);
	if (!IS_ERR(m->sgt))
		mapping_unmap(m);
}

/**
 * struct bench - An attachment for which tests make tables without an exporter
 * @m: The mapping of one page that made the attachment
 * @uses_iova: Whether the peer is behind a translating IOMMU
 * @by_bus: Whether addresses are bus addresses; such a mapping cannot fail
 */
struct bench {
	struct mapping *m;
	bool uses_iova;
	bool by_bus;
};

static struct sg_table *make_table(struct bench *b, struct phys_vec *vec,
				   size_t nr_ranges, size_t size)
{
	struct sg_table *sgt;

	dma_resv_lock(b->m->buf->resv, NULL);
	sgt = dma_buf_phys_vec_to_sgt(b->m->attach, b->m->provider, vec,
				      nr_ranges, size, DMA_BIDIRECTIONAL);
	dma_resv_unlock(b->m->buf->resv);

	return sgt;
}

static void free_table(struct bench *b, struct sg_table *sgt)
{
	dma_resv_lock(b->m->buf->resv, NULL);
	dma_buf_free_sgt(b->m->attach, sgt, DMA_BIDIRECTIONAL);
	dma_resv_unlock(b->m->buf->resv);
}

/* The limits of the peer from before the test. */
static unsigned int old_max_seg_size;
static u64 old_bus_dma_limit;

static void restore_peer(void *unused)
{
	dma_set_max_seg_size(&peer->dev, old_max_seg_size);
	peer->dev.bus_dma_limit = old_bus_dma_limit;
}

/* An address without IOMMU page tables, and above the limit of the peer. */
#define FAR_AWAY	BIT_ULL(60)

/* Skips the test where there is no path. KUnit restores the peer's limits. */
static void bench_init(struct kunit *test, struct bench *b)
{
	b->m = mapping_map(test, &one_page, 1);
	b->uses_iova = mapping_uses_iova(b->m);
	b->by_bus = !b->uses_iova && below_one_port();
	kunit_release_action(test, mapping_unmap, b->m);

	old_max_seg_size = dma_get_max_seg_size(&peer->dev);
	old_bus_dma_limit = peer->dev.bus_dma_limit;
	KUNIT_ASSERT_EQ(test, 0,
			kunit_add_action_or_reset(test, restore_peer, NULL));
	peer->dev.bus_dma_limit = FAR_AWAY - 1;
	dma_set_max_seg_size(&peer->dev, UINT_MAX);
}

/* Allocates ranges, which the test fills. */
static struct phys_vec *new_vec(struct kunit *test, size_t nr_ranges)
{
	struct phys_vec *vec;

	vec = kunit_kcalloc(test, nr_ranges, sizeof(*vec), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, vec);
	return vec;
}

static struct phys_vec bar_pages(unsigned int first, unsigned int count)
{
	return (struct phys_vec){
		.paddr = pci_resource_start(vram, VRAM_BAR) +
			 ((phys_addr_t)first << PAGE_SHIFT),
		.len = (size_t)count << PAGE_SHIFT,
	};
}

/* Returns the IOVA that the allocator gives a buffer of this many pages. */
static dma_addr_t probe_iova(struct kunit *test, struct bench *b,
			     unsigned int pages)
{
	struct phys_vec vec = bar_pages(0, pages);
	struct sg_table *sgt;
	dma_addr_t addr;

	sgt = make_table(b, &vec, 1, vec.len);
	KUNIT_ASSERT_NOT_ERR_OR_NULL(test, sgt);
	addr = sg_dma_address(sgt->sgl);
	free_table(b, sgt);

	return addr;
}

/* A missing attachment is refused before anything is dereferenced. */
static void without_attachment_is_refused(struct kunit *test)
{
	struct phys_vec vec = bar_pages(0, 1);
	struct sg_table *sgt;
	struct bench b;

	bench_init(test, &b);
	kunit_warning_suppress(test) {
		sgt = dma_buf_phys_vec_to_sgt(NULL, b.m->provider, &vec, 1,
					      vec.len, DMA_BIDIRECTIONAL);
		KUNIT_EXPECT_SUPPRESSED_WARNING_COUNT(test, 1);
	}
	KUNIT_EXPECT_EQ(test, PTR_ERR_OR_ZERO(sgt), -EINVAL);
}

/* No entry is longer than the maximum segment size of the importer. */
static void entries_keep_to_the_limit(struct kunit *test)
{
	static const unsigned int limits[] = {
		PAGE_SIZE, 2 * PAGE_SIZE, 2 * PAGE_SIZE + 1, 16 * PAGE_SIZE - 1,
		16 * PAGE_SIZE, 256 * PAGE_SIZE, UINT_MAX,
	};
	const size_t size = 338 * PAGE_SIZE;
	struct phys_vec *vec = new_vec(test, 3);
	struct bench b;
	size_t i, k;

	bench_init(test, &b);
	vec[0] = bar_pages(7, 37);
	vec[1] = bar_pages(64, 1);
	vec[2] = bar_pages(100, 300);
	for (i = 0; i < ARRAY_SIZE(limits); i++) {
		size_t max_len = PAGE_ALIGN_DOWN(limits[i]);
		size_t nents = 0;
		struct sg_table *sgt;

		dma_set_max_seg_size(&peer->dev, limits[i]);
		sgt = make_table(&b, vec, 3, size);
		KUNIT_ASSERT_NOT_ERR_OR_NULL(test, sgt);
		for (k = 0; k < 3; k++)
			nents += DIV_ROUND_UP(vec[k].len, max_len);
		if (b.uses_iova)
			nents = DIV_ROUND_UP(size, max_len);
		KUNIT_EXPECT_EQ(test, nents,
				check_table(test, vec, 3, sgt, max_len,
					    b.uses_iova));
		free_table(&b, sgt);
	}

	dma_set_max_seg_size(&peer->dev, PAGE_SIZE / 2);
	KUNIT_EXPECT_EQ(test, -EINVAL,
			PTR_ERR_OR_ZERO(make_table(&b, vec, 3, size)));
}

/*
 * If the IOVA space has no room for all of the ranges in one piece, each range
 * gets an IOVA of its own.
 */
static void ranges_get_an_iova_each(struct kunit *test)
{
	const unsigned int pages = 30;
	struct phys_vec *vec = new_vec(test, 3);
	const size_t size = 3 * pages * PAGE_SIZE;
	struct sg_table *sgt;
	struct bench b;
	size_t i;

	bench_init(test, &b);
	if (!b.uses_iova)
		kunit_skip(test, "there are no IOVAs");

	for (i = 0; i < 3; i++)
		vec[i] = bar_pages(2 * i * pages, pages);
	/* An IOVA is aligned to its size, and there is none at 0. */
	peer->dev.bus_dma_limit = 4 * 32 * PAGE_SIZE - 1;
	sgt = make_table(&b, vec, 3, size);
	peer->dev.bus_dma_limit = FAR_AWAY - 1;
	KUNIT_ASSERT_NOT_ERR_OR_NULL(test, sgt);
	KUNIT_EXPECT_EQ(test, sgt->nents, 3);
	check_table(test, vec, 3, sgt, MAX_ENTRY, true);
	free_table(&b, sgt);

	sgt = make_table(&b, vec, 3, size);
	KUNIT_ASSERT_NOT_ERR_OR_NULL(test, sgt);
	KUNIT_EXPECT_EQ(test, sgt->nents, 1);
	check_table(test, vec, 3, sgt, MAX_ENTRY, true);
	free_table(&b, sgt);
}

/*
 * A range that is longer than an entry is unmapped as it was mapped:
 * DMA_API_DEBUG compares both. The ranges are beyond the end of the BAR;
 * nothing accesses them.
 */
static void long_ranges_are_unmapped_as_mapped(struct kunit *test)
{
	static const size_t lengths[] = {
		SZ_2G, SZ_4G - PAGE_SIZE, SZ_4G, 5ULL * SZ_1G + PAGE_SIZE, 64ULL * SZ_1G,
	};
	struct phys_vec *vec = new_vec(test, 2);
	struct scatterlist *sg;
	struct sg_table *sgt;
	struct bench b;
	size_t n;
	int i;

	bench_init(test, &b);
	vec[0] = bar_pages(0, 1);
	vec[1] = bar_pages(8, 1);
	for (n = 0; n < ARRAY_SIZE(lengths); n++) {
		size_t size = lengths[n] + vec[1].len, total = 0;
		size_t nents;

		vec[0].len = lengths[n];
		kunit_warning_suppress(test) {
			sgt = make_table(&b, vec, 2, size);
			KUNIT_ASSERT_NOT_ERR_OR_NULL(test, sgt);
			for_each_sgtable_dma_sg(sgt, sg, i) {
				KUNIT_EXPECT_LE(test, sg_dma_len(sg), MAX_ENTRY);
				total += sg_dma_len(sg);
			}
			nents = 1 + DIV_ROUND_UP(vec[0].len, MAX_ENTRY);
			if (b.uses_iova)
				nents = DIV_ROUND_UP(size, MAX_ENTRY);
			KUNIT_EXPECT_EQ(test, i, nents);
			KUNIT_EXPECT_EQ(test, total, size);
			free_table(&b, sgt);
			KUNIT_EXPECT_SUPPRESSED_WARNING_COUNT(test, 0);
		}
	}
}

/*
 * One range cannot be mapped, at each place of the table: the ranges before it
 * are unmapped, no more (DMA_API_DEBUG warns) and no less (the IOVA is free
 * again).
 */
static void failing_range_is_undone(struct kunit *test)
{
	const size_t nr_ranges = 5;
	struct phys_vec *vec = new_vec(test, nr_ranges);
	dma_addr_t iova;
	struct bench b;
	size_t bad, i;

	bench_init(test, &b);
	if (b.by_bus)
		kunit_skip(test, "bus addresses do not fail");

	/* Larger than what the per-CPU caches of IOVAs hold */
	iova = probe_iova(test, &b, nr_ranges * 16);
	for (bad = 0; bad < nr_ranges; bad++) {
		for (i = 0; i < nr_ranges; i++)
			vec[i] = bar_pages(20 * i, 16);
		vec[bad].paddr = FAR_AWAY;

		kunit_warning_suppress(test) {
			struct sg_table *sgt;

			sgt = make_table(&b, vec, nr_ranges,
					 nr_ranges * 16 * PAGE_SIZE);
			KUNIT_EXPECT_TRUE_MSG(test, IS_ERR(sgt), "range %zu\n",
					      bad);
			/* The DMA core itself warns about such a range */
			KUNIT_EXPECT_SUPPRESSED_WARNING_COUNT(test, !b.uses_iova);
		}
	}
	KUNIT_EXPECT_EQ(test, iova, probe_iova(test, &b, nr_ranges * 16));
}

/*
 * The number of the helper's allocations without an IOMMU: the structures, and a
 * scatterlist of FEW_RANGES at most, which comes from kmalloc(). Those that
 * follow are of DMA_API_DEBUG, which turns itself off if one fails.
 */
static unsigned int own_allocations(struct bench *b)
{
	return b->by_bus ? 2 : 3;
}

#define FEW_RANGES		40

/*
 * Not with kmemleak: it allocates for each allocation, so that the nth
 * allocation is not the helper's nth.
 */
static bool can_fail_allocations(void)
{
	return IS_ENABLED(CONFIG_FAILSLAB) &&
	       !IS_ENABLED(CONFIG_DEBUG_KMEMLEAK);
}

/*
 * From here on the nth allocation of this task fails, or none if n is 0.
 * Returns how many allocations the previous call still had to wait for, 0 if
 * its failure has happened.
 */
static unsigned int fail_allocation(unsigned int nth)
{
	unsigned int left = 0;

#ifdef CONFIG_FAULT_INJECTION
	left = current->fail_nth;
	current->fail_nth = nth;
#endif
	return left;
}

/* Each allocation fails in turn; nothing is left behind. */
static void failing_allocation_is_undone(struct kunit *test)
{
	const size_t nr_ranges = FEW_RANGES;
	struct phys_vec *vec = new_vec(test, nr_ranges);
	unsigned int nth, left, most, failed = 0;
	dma_addr_t iova;
	struct bench b;
	size_t i;

	if (!can_fail_allocations())
		kunit_skip(test, "needs CONFIG_FAILSLAB, and no kmemleak");

	bench_init(test, &b);
	for (i = 0; i < nr_ranges; i++)
		vec[i] = bar_pages(2 * i, 1);

	iova = probe_iova(test, &b, nr_ranges);
	most = b.uses_iova ? 1000 : own_allocations(&b);
	for (nth = 1, left = 0; !left && nth <= most; nth++) {
		struct sg_table *sgt;

		fail_allocation(nth);
		sgt = make_table(&b, vec, nr_ranges, nr_ranges * PAGE_SIZE);
		left = fail_allocation(0);

		if (IS_ERR(sgt)) {
			KUNIT_EXPECT_EQ(test, PTR_ERR(sgt), -ENOMEM);
			failed++;
			continue;
		}
		/* There was a fallback, or nothing failed */
		check_table(test, vec, nr_ranges, sgt, MAX_ENTRY, b.uses_iova);
		free_table(&b, sgt);
	}
	/* The loop has ended, and one allocation has failed at least */
	KUNIT_EXPECT_LT(test, nth, 1000);
	KUNIT_EXPECT_GE(test, failed, 1);
	KUNIT_EXPECT_EQ(test, iova, probe_iova(test, &b, nr_ranges));
}

#define CASE_RANGES	12

/*
 * Random ranges, limits and failures. Each page of a table is compared with its
 * expected address. Where an allocation or a range fails, there is no table.
 */
static void random_tables(struct kunit *test)
{
	const unsigned int bar = pci_resource_len(vram, VRAM_BAR) >> PAGE_SHIFT;
	struct phys_vec *vec = new_vec(test, CASE_RANGES);
	unsigned int i, c, done = 0, failed = 0;
	struct rnd_state rnd;
	struct bench b;

	bench_init(test, &b);
	if (!seed)
		seed = get_random_u32();
	kunit_info(test, "seed=%u tables=%u\n", seed, tables);
	prandom_seed_state(&rnd, seed);

	for (c = 0; c < tables; c++) {
		unsigned int nr_ranges = 1 + prandom_u32_state(&rnd) % CASE_RANGES;
		unsigned int limit = PAGE_SIZE << prandom_u32_state(&rnd) % 8;
		unsigned int kind = prandom_u32_state(&rnd) % 8;
		unsigned int first = 0, left, nents = 0;
		struct sg_table *sgt;
		size_t size = 0;

		/* The limit is not a multiple of a page, or there is none */
		limit += prandom_u32_state(&rnd) % PAGE_SIZE;
		if (limit & 1)
			limit = UINT_MAX;
		dma_set_max_seg_size(&peer->dev, limit);
		limit = PAGE_ALIGN_DOWN(limit);

		for (i = 0; i < nr_ranges; i++) {
			unsigned int pages = 1 + prandom_u32_state(&rnd) % 6;

			if (prandom_u32_state(&rnd) % 4 || first + pages > bar)
				first = prandom_u32_state(&rnd) % (bar - 6);
			vec[i] = bar_pages(first, pages);
			first += pages;
			size += vec[i].len;
			nents += DIV_ROUND_UP(vec[i].len, limit);
		}

		if (kind == 0 && !b.by_bus)
			vec[prandom_u32_state(&rnd) % nr_ranges].paddr = FAR_AWAY;
		kunit_warning_suppress(test) {
			if (kind == 1 && can_fail_allocations())
				fail_allocation(1 + prandom_u32_state(&rnd) %
						(b.uses_iova ? 8 : own_allocations(&b)));
			sgt = make_table(&b, vec, nr_ranges, size);
			left = fail_allocation(0);
			/* The DMA core itself warns about such a range */
			KUNIT_ASSERT_SUPPRESSED_WARNING_COUNT(test, kind == 0 &&
							      !b.by_bus && !b.uses_iova);
		}

		if (IS_ERR(sgt)) {
			KUNIT_ASSERT_LE(test, kind, 1);
			KUNIT_ASSERT_EQ(test, left, 0);
			failed++;
			continue;
		}
		KUNIT_ASSERT_TRUE(test, kind || b.by_bus);

		/* There is a single IOVA, unless an allocation has failed */
		if (b.uses_iova && (kind != 1 || sgt->nents != nents))
			nents = DIV_ROUND_UP(size, limit);
		i = check_table(test, vec, nr_ranges, sgt, limit, b.uses_iova);
		KUNIT_ASSERT_EQ(test, i, nents);
		free_table(&b, sgt);
		done++;
		cond_resched();
	}

	kunit_info(test, "%u tables, %u failures\n", done, failed);
	KUNIT_EXPECT_GT(test, done, tables / 2);
	if (!b.by_bus || can_fail_allocations())
		KUNIT_EXPECT_GT(test, failed, tables / 50);
}

/* The driver of either of the two devices that has none. */
static int stand_in_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int ret;

	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);

	return pcim_p2pdma_init(pdev);
}

/* No MODULE_DEVICE_TABLE: this module is not to be loaded for a device. */
static const struct pci_device_id stand_in_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT_QUMRANET, IVSHMEM_DEVICE_ID) },
	{ PCI_DEVICE(EDU_VENDOR_ID, EDU_DEVICE_ID) },
	{ }
};

static struct pci_driver stand_in_driver = {
	.name = "dma_buf_mapping_kunit",
	.id_table = stand_in_ids,
	.probe = stand_in_probe,
};

static void put_devices(void)
{
	pci_dev_put(peer);
	pci_dev_put(vram);
	peer = NULL;
	vram = NULL;
}

static int dma_buf_mapping_suite_init(struct kunit_suite *suite)
{
	int ret;

	vram = pci_get_device(PCI_VENDOR_ID_REDHAT_QUMRANET, IVSHMEM_DEVICE_ID,
			      NULL);
	peer = pci_get_device(EDU_VENDOR_ID, EDU_DEVICE_ID, NULL);
	if (!vram || !peer) {
		kunit_mark_skipped(suite, "needs an ivshmem-plain and an edu");
		put_devices();
		return 0;
	}

	ret = pci_register_driver(&stand_in_driver);
	if (ret) {
		put_devices();
		return ret;
	}

	device_lock(&vram->dev);
	device_lock(&peer->dev);

	if (vram->dev.driver && rcu_access_pointer(vram->p2pdma) &&
	    peer->dev.driver)
		return 0;

	kunit_mark_skipped(suite,
			   "needs a driver at %s that called pcim_p2pdma_init(), and any at %s",
			   pci_name(vram), pci_name(peer));
	device_unlock(&peer->dev);
	device_unlock(&vram->dev);
	pci_unregister_driver(&stand_in_driver);
	put_devices();
	return 0;
}

static void dma_buf_mapping_suite_exit(struct kunit_suite *suite)
{
	device_unlock(&peer->dev);
	device_unlock(&vram->dev);
	pci_unregister_driver(&stand_in_driver);
	put_devices();
}

static struct kunit_case dma_buf_mapping_cases[] = {
	KUNIT_CASE_PARAM(every_page_in_place, shape_gen_params),
	KUNIT_CASE(long_scatterlist_is_freed),
	KUNIT_CASE_SLOW(short_scatterlist_is_freed),
	KUNIT_CASE(unsupported_path_is_refused),
	KUNIT_CASE(without_attachment_is_refused),
	KUNIT_CASE(entries_keep_to_the_limit),
	KUNIT_CASE(ranges_get_an_iova_each),
	KUNIT_CASE(long_ranges_are_unmapped_as_mapped),
	KUNIT_CASE(failing_range_is_undone),
	KUNIT_CASE(failing_allocation_is_undone),
	KUNIT_CASE_SLOW(random_tables),
	{}
};

static struct kunit_suite dma_buf_mapping_suite = {
	.name = "dma_buf_mapping",
	.suite_init = dma_buf_mapping_suite_init,
	.suite_exit = dma_buf_mapping_suite_exit,
	.test_cases = dma_buf_mapping_cases,
};

kunit_test_suite(dma_buf_mapping_suite);

MODULE_DESCRIPTION("KUnit suite for the mapping of physical ranges by dma-buf");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
