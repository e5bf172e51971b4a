// SPDX-License-Identifier: GPL-2.0

#include <linux/pm_runtime.h>

__rust_helper int rust_helper_pm_runtime_resume_and_get(struct device *dev)
{
	return pm_runtime_resume_and_get(dev);
}

__rust_helper void rust_helper_pm_runtime_get_noresume(struct device *dev)
{
	pm_runtime_get_noresume(dev);
}

__rust_helper void rust_helper_pm_runtime_mark_last_busy(struct device *dev)
{
	pm_runtime_mark_last_busy(dev);
}

__rust_helper int rust_helper_pm_runtime_put_autosuspend(struct device *dev)
{
	return pm_runtime_put_autosuspend(dev);
}

#ifndef CONFIG_PM
__rust_helper void rust_helper_pm_runtime_set_autosuspend_delay(struct device *dev,
								int delay)
{
	pm_runtime_set_autosuspend_delay(dev, delay);
}

__rust_helper void rust_helper___pm_runtime_use_autosuspend(struct device *dev,
							    bool use)
{
	__pm_runtime_use_autosuspend(dev, use);
}
#endif
