// SPDX-License-Identifier: GPL-2.0

#ifdef CONFIG_RUST_DRM_PAGEMAP
#include <linux/device.h>
#include <linux/dma-direct.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/memremap.h>
#include <linux/mm.h>

__rust_helper int rust_helper_dev_to_node(struct device *dev)
{
	return dev_to_node(dev);
}

__rust_helper unsigned long rust_helper_page_to_pfn(struct page *page)
{
	return page_to_pfn(page);
}

__rust_helper struct dev_pagemap *rust_helper_page_pgmap(const struct page *page)
{
	return page_pgmap(page);
}

/* Number of pages of the folio whose first page is @page. */
__rust_helper unsigned long rust_helper_compound_nr(struct page *page)
{
	return compound_nr(page);
}

/* The range is in a union with an array of no size, which bindgen cannot express. */
__rust_helper void rust_helper_dev_pagemap_set_range(struct dev_pagemap *pgmap,
						     u64 start, u64 len)
{
	pgmap->range.start = start;
	pgmap->range.end = start + len - 1;
}

__rust_helper phys_addr_t rust_helper_dma_to_phys(struct device *dev,
						  dma_addr_t dma_addr)
{
	return dma_to_phys(dev, dma_addr);
}

__rust_helper bool rust_helper_dev_is_dma_coherent(struct device *dev)
{
	return dev_is_dma_coherent(dev);
}

__rust_helper void
rust_helper_dma_sync_single_for_device(struct device *dev, dma_addr_t addr,
				       size_t size, enum dma_data_direction dir)
{
	dma_sync_single_for_device(dev, addr, size, dir);
}

__rust_helper void *rust_helper_phys_to_virt(phys_addr_t address)
{
	return phys_to_virt(address);
}
#endif
