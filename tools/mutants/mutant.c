// SPDX-License-Identifier: GPL-2.0
/*
 * The mutation of this kernel that is on: mutant.active= of the command line,
 * or none. A message is printed once when its code is reached. With ALLOCATIONS
 * one is printed for each allocation that a task with fail-nth reaches.
 */

#include <linux/export.h>
#include <linux/module.h>
#include <linux/mutant.h>
#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/spinlock.h>

#define ALLOCATIONS -1

static int active;
module_param(active, int, 0444);

bool mutant_on(int mutant)
{
	static bool reached;

	if (mutant != active)
		return false;

	if (!READ_ONCE(reached)) {
		WRITE_ONCE(reached, true);
		pr_info("mutant %d reached\n", mutant);
	}
	return true;
}
EXPORT_SYMBOL_GPL(mutant_on);

void mutant_allocation(int place)
{
	static DEFINE_RAW_SPINLOCK(lock);
	static int places[256];
	unsigned long flags;
	bool first = false;
	size_t i;

	if (active != ALLOCATIONS || !in_task() || !current->fail_nth)
		return;

	raw_spin_lock_irqsave(&lock, flags);
	for (i = 0; i < ARRAY_SIZE(places) && places[i] != place; i++) {
		if (places[i])
			continue;
		places[i] = place;
		first = true;
		break;
	}
	raw_spin_unlock_irqrestore(&lock, flags);

	if (first)
		pr_info("allocation %d reached\n", place);
}
EXPORT_SYMBOL_GPL(mutant_allocation);
