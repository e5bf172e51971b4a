/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The part of QEMU's plugin API that profile.c uses, in version 7 of the API, that
 * of QEMU 11. No package has QEMU's own header.
 */

#ifndef QEMU_PLUGIN_H
#define QEMU_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#define QEMU_PLUGIN_VERSION 7

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
struct qemu_info_t;

/* A number for each processor, at an offset of each element of a scoreboard. */
struct qemu_plugin_u64 {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
};

enum { CB_NO_REGS = 0 };	/* of enum qemu_plugin_cb_flags */
enum { COND_NE = 3 };		/* of enum qemu_plugin_cond */

typedef void (*tb_trans_cb_t)(struct qemu_plugin_tb *tb, void *userdata);
typedef void (*insn_exec_cb_t)(unsigned int vcpu, void *userdata);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
					   tb_trans_cb_t cb, void *userdata);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    insn_exec_cb_t cb, int flags,
					    void *userdata);
void qemu_plugin_register_vcpu_insn_exec_cond_cb(struct qemu_plugin_insn *insn,
						 insn_exec_cb_t cb, int flags,
						 int cond, struct qemu_plugin_u64 entry,
						 uint64_t imm, void *userdata);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
						 size_t idx);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *dest,
			     size_t len);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t element_size);
void qemu_plugin_u64_set(struct qemu_plugin_u64 entry, unsigned int vcpu,
			 uint64_t value);

#endif
