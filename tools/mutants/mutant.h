/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __LINUX_MUTANT_H
#define __LINUX_MUTANT_H

#include <linux/types.h>

/* Whether this kernel was booted with this mutation. */
bool mutant_on(int mutant);

/* Records that memory is about to be allocated there. */
void mutant_allocation(int place);

#endif
