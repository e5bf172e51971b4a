// SPDX-License-Identifier: GPL-2.0

#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/memremap.h>
#include <linux/page_ref.h>
#include <linux/pci-p2pdma.h>

__rust_helper bool rust_helper_pci_dev_is_disconnected(const struct pci_dev *pdev)
{
	return pci_dev_is_disconnected(pdev);
}

__rust_helper u64 rust_helper_dma_get_mask(struct device *dev)
{
	return dma_get_mask(dev);
}

#ifdef CONFIG_PCI_P2PDMA
__rust_helper struct page *rust_helper_pfn_to_page(unsigned long pfn)
{
	return pfn_to_page(pfn);
}

__rust_helper int rust_helper_page_ref_freeze(struct page *page, int count)
{
	return page_ref_freeze(page, count);
}

__rust_helper void rust_helper_page_ref_unfreeze(struct page *page, int count)
{
	page_ref_unfreeze(page, count);
}

__rust_helper void rust_helper_put_dev_pagemap(struct dev_pagemap *pgmap)
{
	put_dev_pagemap(pgmap);
}

__rust_helper phys_addr_t rust_helper_virt_to_phys(void *addr)
{
	return virt_to_phys(addr);
}
#endif

/* Without CONFIG_PCI_P2PDMA these are inline stubs, which bindgen skips. */
#ifndef CONFIG_PCI_P2PDMA
__rust_helper int rust_helper_pcim_p2pdma_init(struct pci_dev *pdev)
{
	return pcim_p2pdma_init(pdev);
}

__rust_helper struct p2pdma_provider *
rust_helper_pcim_p2pdma_provider(struct pci_dev *pdev, int bar)
{
	return pcim_p2pdma_provider(pdev, bar);
}

__rust_helper int
rust_helper_pci_p2pdma_distance_many(struct pci_dev *provider,
				     struct device **clients, int num_clients,
				     bool verbose)
{
	return pci_p2pdma_distance_many(provider, clients, num_clients,
					verbose);
}

__rust_helper enum pci_p2pdma_map_type
rust_helper_pci_p2pdma_map_type(struct p2pdma_provider *provider,
				struct device *dev)
{
	return pci_p2pdma_map_type(provider, dev);
}

__rust_helper void
rust_helper_pci_p2pdma_decide(struct pci_dev *provider, struct pci_dev *client,
			      struct pci_p2pdma_decision *decision)
{
	pci_p2pdma_decide(provider, client, decision);
}
#endif
