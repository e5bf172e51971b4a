# SPDX-License-Identifier: GPL-2.0
#
# The commands of the repository; tools/lab does the work. The kernel's own
# build reads Kbuild in this folder, never this file.

export KSRC MIRROR KVM JOBS GUESTS SEED FLAVOUR TOPOLOGY GPU EDU TEST CALLS TIME GUIDED MUTANT WITHOUT OUT AUTHOR CONFIG

LAB := python3 -B tools/lab

.PHONY: help demo check soak test rdma fuzz bench profile mutants style docs tree deb p2p shell clean python

help:
	@echo 'make demo    build everything, boot every topology, show one table'
	@echo 'make check   build everything, pass every test'
	@echo 'make soak    pass the tests that take too long to be run with each change'
	@echo 'make test    pass some tests on one machine: TEST=program[@subtest],... and TOPOLOGY='
	@echo 'make rdma    pass the tests with RDMA alone, show their bandwidths'
	@echo 'make fuzz    make random calls, CALLS= of them or for TIME= seconds on each machine'
	@echo 'make bench   count instructions of moves, exports and mappings'
	@echo 'make profile show the functions that take the instructions of some figures, on TOPOLOGY='
	@echo 'make mutants break the code, one place at a time, and check that a test finds it'
	@echo 'make style   rustfmt, clippy, checkpatch, git am, get_maintainer, layers, make docs'
	@echo 'make docs    the pages below Documentation, as the Sphinx of the kernel renders them'
	@echo 'make tree    a git tree of Linux in OUT=dir, with a commit for each step of the series'
	@echo 'make deb     Debian packages of the kernel and of p2p, for a real machine'
	@echo 'make p2p     a Debian package of p2p alone, and the program, which runs on any Linux'
	@echo 'make shell   an interactive guest with the devices in place'
	@echo 'make clean   remove the caches'
	@echo
	@echo 'Settings, all optional:'
	@echo '  KSRC=dir        a Linux 7.3 tree to use instead of Debian'"'"'s package'
	@echo '  MIRROR=url      a Debian mirror to use instead of the one apt is set up with'
	@echo '  JOBS=n          parallel compilers (default: one per processor)'
	@echo '  GUESTS=n        guests at the same time, at most (default: four per processor)'
	@echo '  SEED=n          the seed of all random numbers of the tests (default: a new one)'
	@echo '  FLAVOUR=name    kernel: check (default: lockdep, checks of the DMA API) or'
	@echo '                  kasan (KASAN and UBSAN, no lockdep) or'
	@echo '                  kmemleak (looks for leaks at the end of each boot) or'
	@echo '                  rt (PREEMPT_RT, on which spinlocks sleep) or'
	@echo '                  plain (no checks); make bench and profile always take plain,'
	@echo '                  and make soak all the others if none is given, then also'
	@echo '                  arm64 and arm64-64k (boots with pages of 4 and of 64 KiB),'
	@echo '                  deb (boots what the packages of make deb install) and'
	@echo '                  tree (builds each commit of make tree, x86-64 and arm64)'
	@echo '  OUT=dir         folder of make tree, new or empty; dir.patches gets the patches;'
	@echo '                  or of make deb and p2p (default: a folder of the caches)'
	@echo '  CONFIG=file     the kernel configuration that make deb begins with, such as'
	@echo '                  /boot/config-* of the machine (default: x86_64_defconfig, and'
	@echo '                  what a server has)'
	@echo '  AUTHOR=name     who signs off the commits of make tree, "Name <mail>" (default:'
	@echo '                  the identity that git has)'
	@echo '  TOPOLOGY=name   machine of make test, profile and shell: switch (default), host-bridge,'
	@echo '                  intel-iommu, no-route, acs-pair, virtio-iommu, or with two GPUs'
	@echo '                  pair-switch, pair-host-bridge, pair-intel-iommu, pair-no-route,'
	@echo '                  or with these and a NIC: rdma-switch, and so on,'
	@echo '                  or with an NVMe drive: disk-switch, disk-host-bridge,'
	@echo '                  disk-intel-iommu, disk-no-route,'
	@echo '                  or with modelled GPUs: gpu-switch, gpu-host-bridge, gpu-intel-iommu'
	@echo '  GPU=sizes       of each modelled GPU of make test and shell: vram=64G,aperture=256M'
	@echo '  EDU=qemu        the edu of QEMU, which is slow, as the peer of make test'
	@echo '  MUTANT=id,...   only these mutations of tools/mutants/list.toml'
	@echo '  CALLS=n TIME=n  of make fuzz (default: a million, half an hour); it takes TOPOLOGY='
	@echo '                  and FLAVOUR= as well'
	@echo '  GUIDED=0        coverage does not guide the calls of make fuzz FLAVOUR=kasan'
	@echo '  WITHOUT=id,...  build a kernel without the patches whose names begin so'
	@echo '  KVM=1           run guests under KVM instead of TCG (real time, not reproducible)'
	@echo
	@echo 'A Debian machine (bookworm or later, amd64) with git, make and apt is enough, as root;'
	@echo 'as a plain user, with python3, mmdebstrap and uidmap installed and a range in'
	@echo '/etc/subuid. Caches and logs: $$XDG_CACHE_HOME/vvram-lab, else ~/.cache/vvram-lab;'
	@echo 'they need 13 GB, and 4 GB more for each of FLAVOUR=tree, FLAVOUR=arm64 and make deb.'
	@echo 'A report to look at, report.html, is beside the logs of demo, check, soak, test, rdma'
	@echo 'and bench.'

demo check soak test rdma fuzz bench profile mutants style docs tree deb p2p shell clean: python
	@$(LAB) $@

python:
	@command -v python3 >/dev/null || { apt-get update && apt-get install -y --no-install-recommends python3; }
