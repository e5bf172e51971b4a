// SPDX-License-Identifier: GPL-2.0

#include <linux/devcoredump.h>

/* Without CONFIG_DEV_COREDUMP it is an inline stub, which bindgen skips. */
#ifndef CONFIG_DEV_COREDUMP
__rust_helper void rust_helper_dev_coredumpv(struct device *dev, void *data,
					     size_t datalen, gfp_t gfp)
{
	dev_coredumpv(dev, data, datalen, gfp);
}
#endif
