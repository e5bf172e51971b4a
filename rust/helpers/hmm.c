// SPDX-License-Identifier: GPL-2.0

#ifdef CONFIG_RUST_HMM
#include <linux/mmu_notifier.h>

__rust_helper void
rust_helper_mmu_interval_set_seq(struct mmu_interval_notifier *interval_sub,
				 unsigned long cur_seq)
{
	mmu_interval_set_seq(interval_sub, cur_seq);
}

__rust_helper bool
rust_helper_mmu_interval_read_retry(struct mmu_interval_notifier *interval_sub,
				    unsigned long seq)
{
	return mmu_interval_read_retry(interval_sub, seq);
}
#endif
