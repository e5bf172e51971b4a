// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin of QEMU that records the instructions that a guest executes.
 *
 *	-plugin profile.so,out=FILE
 *
 * It does so between two marks that a program executes: no-operations with an
 * operand that no compiler emits. FILE gets a 64-bit number for each
 * instruction: the low 48 bits of its address, and a kind above them. The lab
 * finds the measured part, and the functions of the addresses.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "qemu-plugin.h"

EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* The kind of an instruction, in the bits above those of its address. */
enum { PLAIN, CLOCK, OPEN, CLOSE };

#define ADDRESS ((1ULL << 48) - 1)

/* nopl 'prof'(%rax) and nopl 'prog'(%rax): igt-tests/src/window.rs has them too. */
static const uint8_t open_mark[] = { 0x0f, 0x1f, 0x80, 'p', 'r', 'o', 'f' };
static const uint8_t close_mark[] = { 0x0f, 0x1f, 0x80, 'p', 'r', 'o', 'g' };
static const uint8_t rdtsc[] = { 0x0f, 0x31 };
static const uint8_t rdtscp[] = { 0x0f, 0x01, 0xf9 };

static FILE *out;
/* Whether a window is open, where generated code can look at it. */
static struct qemu_plugin_u64 is_open;

static void record(unsigned int vcpu, void *what)
{
	uint64_t number = (uintptr_t)what;

	fwrite(&number, sizeof(number), 1, out);
}

static void record_mark(unsigned int vcpu, void *what)
{
	bool opens = (uintptr_t)what >> 48 == OPEN;

	qemu_plugin_u64_set(is_open, vcpu, opens);
	record(vcpu, what);
	if (!opens)
		fflush(out);
}

static unsigned int kind(const struct qemu_plugin_insn *insn)
{
	uint8_t code[sizeof(open_mark)];
	size_t len = qemu_plugin_insn_data(insn, code, sizeof(code));

#define IS(bytes) (len >= sizeof(bytes) && !memcmp(code, bytes, sizeof(bytes)))
	if (IS(open_mark))
		return OPEN;
	if (IS(close_mark))
		return CLOSE;
	return IS(rdtsc) || IS(rdtscp) ? CLOCK : PLAIN;
#undef IS
}

static void translate(struct qemu_plugin_tb *tb, void *userdata)
{
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t what = kind(insn);
		void *number = (void *)(uintptr_t)
			(what << 48 | (qemu_plugin_insn_vaddr(insn) & ADDRESS));

		if (what == OPEN || what == CLOSE)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, record_mark,
							       CB_NO_REGS, number);
		else
			qemu_plugin_register_vcpu_insn_exec_cond_cb(insn, record,
								    CB_NO_REGS,
								    COND_NE,
								    is_open, 0,
								    number);
	}
}

EXPORT int qemu_plugin_install(uint64_t id, const struct qemu_info_t *info,
			       int argc, char **argv)
{
	if (argc != 1 || strncmp(argv[0], "out=", 4))
		return -1;
	out = fopen(argv[0] + 4, "wb");
	if (!out)
		return -1;
	is_open.score = qemu_plugin_scoreboard_new(sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate, NULL);
	return 0;
}
