// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit suite for drivers/dma-buf/dma-buf-mapping.c.
 *
 * dma_buf_phys_vec_to_sgt() maps nothing but the MMIO of one PCI device for
 * another, and how it does so is decided by the path between the two. So the
 * suite needs two real devices and takes QEMU's: BAR 2 of an ivshmem-plain is
 * the memory, an edu is the peer. It starts no DMA and does not touch the
 * content of the BAR. What it says depends on the machine:
 *
 *  - behind a translating IOMMU every page of every mapping is looked up in the
 *    page tables of the peer;
 *  - by bus address, or with no IOMMU, every address is compared with the BAR;
 *  - where the path is not supported, the mapping has to be refused.
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
#include <linux/file.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci-p2pdma.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/vmstat.h>

#define IVSHMEM_DEVICE_ID	0x1110
#define EDU_VENDOR_ID		0x1234
#define EDU_DEVICE_ID		0x11e8

#define VRAM_BAR		2

#define MAX_RANGES		300

/* Both are locked while the suite runs: no driver of theirs comes or goes. */
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
 * @sgt: Table as the peer got it; the core may hand out a copy
 * @own: Table as dma_buf_phys_vec_to_sgt() made it
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
	/* A kernel thread puts files by a work item: do not wait for its turn. */
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

/* Exports the ranges and attaches the peer. All of it is undone by KUnit. */
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

/* As mapping_attach(), and maps. A path that is not supported skips the test. */
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

/* What the peer has to put on the bus for a page, if nothing translates it. */
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
		/* 2 MiB pages: the last one at an offset that cannot be one */
		.desc = "large and small",
		.nr_ranges = 3,
		.ranges = { { SZ_2M / PAGE_SIZE, SZ_2M / PAGE_SIZE }, { 1, 1 },
			    { SZ_4M / PAGE_SIZE, SZ_2M / PAGE_SIZE } },
	},
};

KUNIT_ARRAY_PARAM_DESC(shape, shapes, desc);

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
	struct scatterlist *sg;
	dma_addr_t iova = 0;
	size_t range = 0, offset = 0, total = 0, pos;
	struct mapping *m;
	bool uses_iova;
	int i;

	m = mapping_map(test, shape->ranges, shape->nr_ranges);
	uses_iova = mapping_uses_iova(m);

	if (uses_iova) {
		iova = sg_dma_address(m->sgt->sgl);
		KUNIT_ASSERT_NOT_NULL(test, domain);
		KUNIT_ASSERT_TRUE(test, iommu_is_dma_domain(domain));
		/* One IOVA area spans the buffer */
		KUNIT_EXPECT_EQ(test, m->sgt->nents, 1);
	} else {
		KUNIT_EXPECT_EQ(test, m->sgt->nents, m->nr_ranges);
	}

	/* Importers recognise by this that there is no CPU list */
	KUNIT_EXPECT_EQ(test, m->own->orig_nents, 0);

	for_each_sgtable_dma_sg(m->sgt, sg, i)
		total += sg_dma_len(sg);
	KUNIT_ASSERT_EQ(test, total, m->size);

	for_each_sgtable_dma_sg(m->sgt, sg, i) {
		for (pos = 0; pos < sg_dma_len(sg); pos += PAGE_SIZE) {
			phys_addr_t want = m->vec[range].paddr + offset;
			dma_addr_t addr = sg_dma_address(sg) + pos;

			if (uses_iova)
				KUNIT_ASSERT_EQ_MSG(test, want,
						    iommu_iova_to_phys(domain, addr),
						    "page %zu of range %zu\n",
						    offset >> PAGE_SHIFT, range);
			else
				KUNIT_ASSERT_EQ_MSG(test, mapping_bus_addr(want),
						    addr,
						    "page %zu of range %zu\n",
						    offset >> PAGE_SHIFT, range);

			offset += PAGE_SIZE;
			if (offset == m->vec[range].len) {
				offset = 0;
				range++;
			}
		}
	}

	kunit_release_action(test, mapping_unmap, m);

	if (!uses_iova)
		return;

	for (pos = 0; pos < m->size; pos += PAGE_SIZE)
		KUNIT_ASSERT_EQ_MSG(test, iommu_iova_to_phys(domain, iova + pos), 0,
				    "page %zu is still mapped\n", pos >> PAGE_SHIFT);
}

/*
 * The scatterlist is freed with the mapping: a long one.
 *
 * A table of more than SG_MAX_SINGLE_ALLOC entries is a chain, and every link
 * but the last is a whole page from the page allocator. So there is no need for
 * statistics: hold a reference of one's own to each of these pages, and after
 * the unmap it must be the only one.
 */
static void long_scatterlist_is_freed(struct kunit *test)
{
	struct page *pages[MAX_RANGES / (SG_MAX_SINGLE_ALLOC - 1)];
	unsigned int left, i, nr_pages = 0;
	struct scatterlist *sg;
	struct bar_range *ranges;
	struct mapping *m;

	/* Ask with one range: mapping more of them is not what is tested here. */
	m = mapping_map(test, &one_page, 1);
	if (mapping_uses_iova(m))
		kunit_skip(test, "one IOVA spans the buffer, the table is short");

	ranges = kunit_kcalloc(test, MAX_RANGES, sizeof(*ranges), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, ranges);
	for (i = 0; i < MAX_RANGES; i++) {
		ranges[i].first = 2 * i;
		ranges[i].count = 1;
	}

	m = mapping_map(test, ranges, MAX_RANGES);
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
	KUNIT_EXPECT_EQ(test, nr_pages, ARRAY_SIZE(pages));

	kunit_release_action(test, mapping_unmap, m);

	for (i = 0; i < nr_pages; i++) {
		KUNIT_EXPECT_EQ_MSG(test, page_count(pages[i]), 1,
				    "link %u of the scatterlist leaked\n", i);
		put_page(pages[i]);
	}
}

/*
 * The scatterlist is freed with the mapping: a short one, which comes from
 * kmalloc(). Behind an IOMMU there is no other.
 *
 * Here only statistics tell. A leak of one entry of 32 bytes per cycle is 2 MiB,
 * 512 pages of slab. The counter is exact to 125 pages for each processor whose
 * share is not summed up yet, and of those only the one that runs the test moves
 * it by much. Seen: 506 to 525 pages with the leak, 0 to 32 without (the most on
 * four processors). Half of the leak is well clear of either.
 */
static void short_scatterlist_is_freed(struct kunit *test)
{
	const unsigned int cycles = 1 << 16;
	const long leak = cycles * sizeof(struct scatterlist) >> PAGE_SHIFT;
	unsigned long before, after;
	struct mapping *m;
	unsigned int i;

	/* What was freed stays allocated for a while; kmemleak looks then. */
	if (IS_ENABLED(CONFIG_KASAN_GENERIC))
		kunit_skip(test, "KASAN has a quarantine");

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

/* Without a path the mapping is refused; the attachment alone is not. */
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

/* A driver for those of the two devices that have none. */
static int stand_in_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int ret;

	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;

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
