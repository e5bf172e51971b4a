// SPDX-License-Identifier: GPL-2.0

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>

#ifdef CONFIG_DMA_SHARED_BUFFER
__rust_helper void rust_helper_get_dma_buf(struct dma_buf *dmabuf)
{
	get_dma_buf(dmabuf);
}

__rust_helper unsigned long rust_helper_file_count(struct file *file)
{
	return file_count(file);
}

__rust_helper unsigned int rust_helper_dma_get_max_seg_size(struct device *dev)
{
	return dma_get_max_seg_size(dev);
}

__rust_helper void
rust_helper_dma_sync_sgtable_for_cpu(struct device *dev, struct sg_table *sgt,
				     enum dma_data_direction dir)
{
	dma_sync_sgtable_for_cpu(dev, sgt, dir);
}

__rust_helper void
rust_helper_dma_sync_sgtable_for_device(struct device *dev,
					struct sg_table *sgt,
					enum dma_data_direction dir)
{
	dma_sync_sgtable_for_device(dev, sgt, dir);
}

#endif
