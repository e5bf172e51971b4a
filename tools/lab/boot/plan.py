# SPDX-License-Identifier: GPL-2.0
"""The plan of the boots: the programs of the tests, and the machines on which each is useful."""

import dataclasses
import fnmatch
import os

from boot import models, qemu, topologies
from build import kernel

# The factor by which a test may take longer than on an idle processor. The guests of the tests have
# more processors than the host.
SLOWER = {"check": 6, "kasan": 12, "kmemleak": 12, "rt": 6, "plain": 6, "arm64": 12,
          "arm64-64k": 12}
# Limits in seconds, which SLOWER and VVRAM_SOAK multiply: of a boot, of a test under igt_runner,
# and without a mark of the guest, which has to be more than that of a test.
BOOT_TIMEOUT = 400
TEST_TIMEOUT = 60
SILENCE = 100
SWITCH, *_ = topologies.TOPOLOGIES
# The machines of `make check` for the topologies: with a disk, if there is such a machine.
MACHINES = tuple(topologies.find(f"disk-{topology.name}") or topology
                 for topology in topologies.TOPOLOGIES)
# Programs whose outcome depends on the route between exporter and importer.
MATRIX = "vvram_matrix"
EVERYWHERE = ("vvram_bar_export", "vvram_export", MATRIX, "vvram_p2p", "vvram_query")
# The subtests of the matrix that depend on the route and not only on its kind.
MATRIX_OF_ROUTE = (f"{MATRIX}@either-*", f"{MATRIX}@vram-*")
# Those of transfers that do so: the others count, or race, on the device alone.
P2P_OF_ROUTE = tuple(f"vvram_p2p@{subtest}" for subtest in (
    "across-ranges", "attachments-*", "dynamic", "iova-offset", "last-byte", "multi-range", "no-p2p-refused",
    "one-byte", "pinned", "revocable", "static-refused", "status", "unaligned", "whole-vram"))
# That of a device with limits that depends on it.
LIMITS_OF_ROUTE = ("edu_limits@mask-memory", "edu_limits@mask-vram")
# Programs that depend on the kind of address only: a bus address, an address behind an IOMMU, or
# none.
KINDS = ("avram_export", "edu_limits", "edu_memory_life", "edu_user_memory", "vvram_counters",
         "vvram_hotplug", "vvram_kill", "vvram_move", "vvram_reset", "vvram_svm_peer",
         "vvram_unbind", "vvram_vfio")
# The subtest of a program that runs once which depends on the kind of address as well.
POSTED = "edu_faults@posted"
# The subtests of these programs that say something without a route; the others need one.
WITHOUT_ROUTE = {
    "avram_export": "imported matrix pairs unloaded",
    "vvram_counters": "device-gone no-opt-in no-route outside-bar",
    "vvram_hotplug": "idle",
    "vvram_kill": "busy-creator creator refused",
    "vvram_move": "alone flags oversubscribe system-path too-large vmap-holds",
    "vvram_p2p": "attachments-* dynamic no-p2p-refused pinned revocable static-refused system-heap",
    "vvram_unbind": "cycles dmabuf-fd drm-fd module-* path-fd peer-module-busy vmapped"}
# Compares the tool for operators with the kernel: all of it for each kind of address, and its answer
# for each pair of devices on each machine.
TOOL = ("p2p_agrees",)
TOOL_EVERYWHERE = ("p2p_agrees@attach", "p2p_agrees@pairs")
# The path between GPU and peer depends on an ACS redirection here, which root alone can read. The
# tool has to call the path unknown without privileges, and to agree with other drivers as well.
REDIRECTED = "acs-pair"
TOOL_REDIRECTED = ("p2p_agrees@nobody", "p2p_agrees@others")
# With two GPUs: for each kind of address, and once.
PAIR = ("pair_copy", "pair_hotplug", "pair_import")
PAIR_ONCE = ("vvram_badinput",)
# With modelled GPUs: those in which devices access each other, for each kind of address; those in
# which a device accesses system memory, also behind an IOMMU, which finds pages that are not mapped;
# and the others, once.
GPU_BOTH = ("mgpu_aperture", "mgpu_model", "mgpu_peer")
GPU_PEERS = (*GPU_BOTH, "mgpu_evict@import-*", "mgpu_unbind@exporter", "mgpu_unbind@importer")
GPU_KINDS = (*GPU_BOTH, "mgpu_evict", "mgpu_exec", "mgpu_gone", "mgpu_unbind", "mgpu_vm")
GPU_ONCE = ("mgpu_badinput", "mgpu_engine", "mgpu_holders", "mgpu_pairs", "mgpu_queue",
            "mgpu_recover", "mgpu_reset", "mgpu_sleep")
# Those of their tests that wait for a timeout, or hang until the device is unbound or removed,
# which does not depend on the kind of address: once.
GPU_HUNG = ("mgpu_exec@hang", "mgpu_gone@removed-in-invalidation", "mgpu_gone@removed-in-reset")
# The same, but for rings that hang while the driver is unbound: behind an IOMMU, too, where a device
# that was not stopped is found.
GPU_HUNG_DMA = ("mgpu_exec@both-hang", "mgpu_unbind@hung")
# Tests of the others in which the device does DMA while it fails or is reset: behind an IOMMU, too,
# where a page that is not mapped is found.
GPU_TRANSLATED = ("mgpu_engine@copies", "mgpu_engine@evicted", "mgpu_recover@again",
                  "mgpu_recover@behind", "mgpu_recover@copies-behind", "mgpu_recover@jobs-behind",
                  "mgpu_reset@function", "mgpu_reset@moves", "mgpu_reset@peers", "mgpu_reset@vms",
                  "mgpu_reset@wedged", "mgpu_reset@whole", "mgpu_reset@whole-peers",
                  "mgpu_sleep@objects")
# Those of these programs that move objects more often in `make soak`.
GPU_SOAK = ("mgpu_aperture", "mgpu_evict", "mgpu_peer", "mgpu_unbind@callers")
# Those of them that are also repeated where each access of a device is checked.
GPU_MOVES = ("mgpu_evict", "mgpu_unbind@callers")
# Moves, resets and removals in turn, of devices that do at random all that their interface permits:
# a few of them, and in `make soak` 20 rounds of all of them, a half of them behind an IOMMU.
GPU_CHAOS_SHORT = ("mgpu_chaos@short",)
GPU_CHAOS_LONG = ("mgpu_chaos@long",)
# On a kernel with PREEMPT_RT: fences, queues and copies, without an engine and with one.
REALTIME = ("vvram_async", "vvram_copy", "vvram_queue", "vvram_sync", "vvram_syncobj")
GPU_REALTIME = ("mgpu_engine", "mgpu_exec", "mgpu_queue")
# With more VRAM than the host has memory: pages of VRAM that are zero take no memory of the host.
GPU_LARGE = ("mgpu_large",)
LARGE = "vram=64G,aperture=256M"
# The end of the names of the topologies of these programs.
KIND_OF_EACH = ("switch", "intel-iommu", "no-route")
# Programs in which each allocation is made to fail, also with modelled GPUs. They are the last ones
# of a boot: an allocation that fails may turn checks of the kernel off.
FAULTS = ("avram_faults", "vvram_faults")
GPU_FAULTS = ("mgpu_faults",)
# Their operations that the layers do not have in common with vvram: `make check` has these only.
GPU_FAULTS_OWN = tuple(f"mgpu_faults@{operation}" for operation in (
    "vm", "bind", "exec", "evict", "moves", "release", "reset", "report", "unbind", "probe"))
# Programs that have the same result on all machines.
ONCE = ("edu_faults", "hmm_cases", "mem_fds", "mem_groups", "mem_process", "vvram_async",
        "vvram_compat", "vvram_copy", "vvram_create", "vvram_debugfs",
        "vvram_dmem", "vvram_exporter", "vvram_failures", "vvram_fdinfo", "vvram_holders",
        "vvram_import", "vvram_leaks", "vvram_limits", "vvram_lru", "vvram_mmap", "vvram_modules",
        "vvram_pairs", "vvram_params", "vvram_pm", "vvram_prime", "vvram_queue",
        "vvram_signals", "vvram_sleep", "vvram_smallbar", "vvram_split", "vvram_storm", "vvram_svm",
        "vvram_svm_direct", "vvram_svm_life", "vvram_svm_share", "vvram_syncobj", "vvram_trace",
        "vvram_usage", "vvram_user", "vvram_views", "vvram_vm", "vvram_vmap",
        *FAULTS)
ONCE_BOOTS = 2
# The modules whose suites use no device: they run in one boot.
WITHOUT_DEVICES = ("fences_kunit", "peer_policy_kunit", "queue_kunit", "range_list_kunit")
# The bytes by a device that nobody here wrote: QEMU's edu, on each kind of route.
ORIGINAL = tuple(f"vvram_p2p@{subtest}" for subtest in (
    "across-ranges", "dynamic", "iova-offset", "last-byte", "pinned", "revocable", "system-heap",
    "two-files", "unaligned"))
ORIGINAL_ON = ("switch", "host-bridge", "intel-iommu", "no-route")
# Random calls: the machine of `make check`, those of `make fuzz`, and its default numbers.
FUZZ = ("fuzz_calls",)
FUZZ_SHORT = "gpu-switch"
FUZZ_LONG = ("pair-switch", "gpu-switch", "intel-iommu")
FUZZ_CALLS = 1_000_000
FUZZ_SECONDS = 1800
# With a NIC: everywhere, for each kind of address, and once.
RDMA = ("rdma_matrix",)
# The subtest of a program that runs once which depends on the route.
RDMA_OF_ROUTE = ("rdma_odp@stays",)
RDMA_KINDS = ("rdma_life",)
# Those of their tests that wait until a connection gives up, which does not depend on the kind of
# address: once.
RDMA_GIVES_UP = ("rdma_life@dead-peer", "rdma_life@full-queue")
RDMA_ONCE = ("mem_odp", "rdma_clients", "rdma_direct", "rdma_odp", "rdma_pressure", "rdma_svm")
# Programs that show that an installed kernel and the tool work.
INSTALLED = ("vvram_bar_export", "vvram_p2p", *TOOL)
# Programs that run on arm64, in a job of their own: there is no igt_runner.
ARM64 = ("avram_export", "vvram_bar_export", "vvram_export", MATRIX, "vvram_move", "vvram_p2p")
PROGRAMS = "programs"
# QEMU's edu takes 100 ms for 4 KiB. With 64 KiB pages the rows that move bytes take minutes each.
ARM64_ORIGINAL = {"arm64-64k": {MATRIX: f"{MATRIX}@vram-*"}}
# Some tests use hundreds of pages.
ARM64_VRAM = {"arm64-64k": "64M"}
# With a disk: for each kind of address, and once.
DISK_KINDS = ("vvram_direct_io",)
DISK_ONCE = ("mem_pages", "vvram_direct_files", "vvram_direct_life")
# With swiotlb=force: all DMA to system memory is copied, and DMA to VRAM must not be.
DISK_BOUNCED = ("vvram_direct_bounce@none",)
# The same where DMA to VRAM would have to be copied, which is not possible.
DISK_UNMAPPED = ("vvram_direct_bounce@fails",)
# With VRAM in another order than the pages of the BAR.
DISK_SCRAMBLED = ("vvram_direct_io@read", "vvram_direct_io@write", "vvram_direct_io@parts")
# Devices see other memory than the CPU here, so code that forgets to synchronize fails.
BOUNCED = ("vvram_bounce", "vvram_sync")
# The BAR shows VRAM in another order here, and VRAM has holes, so code that confuses the two
# offsets fails. The programs are those of the policy that use VRAM, by default and in `make soak`.
SCRAMBLED = ("vvram_copy", "vvram_matrix@vram-dynamic", "vvram_matrix@vram-revocable",
             "vvram_matrix@either-dynamic", "vvram_matrix@either-pinned", "vvram_mmap", "vvram_move",
             "vvram_p2p", "vvram_svm@huge", "vvram_svm@ranges", "vvram_svm@zero", "vvram_views",
             "vvram_vm", "vvram_vmap")
SCRAMBLED_SOAK = (*SCRAMBLED, "vvram_export", "vvram_matrix", "vvram_storm")
# Machines of a topology that differ from it, by the name that their boots and mutations have.
VARIANTS = {"bounce": "swiotlb=force", "unmapped": "swiotlb=force",
            "tracked": "swiotlb=force,track_hiwater",
            "scramble": "vvram.scramble=1 vvram.holes=1"}
# The tests of IGT that open any driver, the one that IGT_FORCE_DRIVER names; those for displays
# and other vendors cannot apply.
GENERIC = ("core_*",)
# The suites of the kernel crate run once, those of modules that use devices on each kind of route.
ALL_SUITES = "*rust*"
NO_SUITES = "none"
ALL_MODULES = "*"
# The larger numbers of `make soak`: rounds of tests, and random scatter tables.
SOAK = 10
TABLES = 100_000
# What pyverbs runs: all modules, or cases, of which one has regions with on-demand paging.
MODULES = "modules"
ON_DEMAND = "on-demand"
# pyverbs' tests with dma-bufs: class of importer and memory. Each class differs in how it gets
# VRAM. The last case is that of regions with on-demand paging.
PYVERBS = ("pinned/vram", "revocable/vram", "dynamic/vram", ON_DEMAND)
# How many combinations of access flags they try each time, of 18, all of which `make soak` has: for
# each class they register some 850 regions otherwise.
PYVERBS_FLAGS = 6
PYVERBS_SOAK = (*PYVERBS, "pinned/system", "revocable/system", "dynamic/system")
# The number of processors that guests keep busy, as measured: the project's own tests wait for
# timers and timeouts, and for transfers that they slow down; soft RoCE, the engines of modelled GPUs
# and suites do not wait.
WAITS = 0.65
RDMA_LOAD = 0.8
GPU_LOAD = 0.8
BUSY = 1.0
# The boots of `make check` with all processors of qemu.PROCESSORS: each test of concurrency runs in
# one of them. The others repeat tests on other machines, with fewer: guests that have more
# processors than the host make them wait for each other. Mutations have fewer as well,
# and `make soak` has all of them everywhere.
CONCURRENT = ("kunit", "switch", "once-*", "gpu-switch", "rdma-once", "rdma-switch",
              "pair-switch", "fuzz")
FEWER = 2
# The part of the host's processors that these keep busy, of what they would with all of them.
LESS = 0.75


def check():
    """The boots of `make check`."""
    boots = [*kunit(), *own(), *gpus(), *rdma_boots(),
             fuzz_boot("check-fuzz", topologies.find(FUZZ_SHORT))]
    return [boot if is_concurrent(boot) else
            dataclasses.replace(boot, processors=FEWER, load=boot.load * LESS) for boot in boots]


def is_concurrent(boot):
    """Whether a boot of `make check` is one of `CONCURRENT`."""
    return any(fnmatch.fnmatch(boot.name, f"check-{pattern}") for pattern in CONCURRENT)


def sanitized():
    """The boots of `make soak` on a kernel with a sanitizer: all programs of the project."""
    return [*kunit(), *own(), *gpus(), *own_rdma(),
            igt("soak-faults", SWITCH, FAULTS, VVRAM_SOAK=SOAK), gpu_faults(),
            *(fuzz() if kernel.flavour() != "kmemleak" else ())]


def realtime():
    """The boots of `make soak` on a kernel with PREEMPT_RT: the suites, and what has fences."""
    return [*kunit(), igt("soak-realtime", SWITCH, REALTIME),
            igt("soak-gpu-realtime", topologies.MODELS[0], GPU_REALTIME, GPU_LOAD)]


def gpu_faults():
    """The boot in which each allocation of each operation of a modelled GPU fails."""
    return igt("soak-gpu-faults", topologies.MODELS[0], GPU_FAULTS, GPU_LOAD, VVRAM_SOAK=SOAK)


def soak():
    """The boots of `make soak` on its kernel: long forms, and the tests that `make check` omits."""
    tables = [kunit_boot(f"soak-{boot.name.removeprefix('check-')}", boot.topology, NO_SUITES,
                         LAB_TABLES=TABLES) for boot in kunit()]
    switch, *rdmas = topologies.RDMA
    return [pyverbs("soak-pyverbs-modules"),
            pyverbs("soak-pyverbs", PYVERBS_SOAK),
            *tables,
            *[igt(f"soak-{topology.name}", topology, (*EVERYWHERE, *KINDS), VVRAM_SOAK=SOAK)
              for topology in topologies.TOPOLOGIES[:3]],
            *[igt(f"soak-{topology.name}", topology, KINDS)
              for topology in topologies.TOPOLOGIES[3:] if not of_kinds(topology)],
            *[igt(f"soak-{topology.name}", topology, on_pair(topology), VVRAM_SOAK=SOAK)
              for topology in topologies.PAIRS],
            *once("soak", VVRAM_SOAK=SOAK),
            *[igt(f"soak-scramble-{topology.name}", variant("scramble", topology), SCRAMBLED_SOAK)
              for topology in topologies.TOPOLOGIES if of_kinds(topology)],
            igt("soak-gpu", topologies.MODELS[0], GPU_SOAK, GPU_LOAD, VVRAM_SOAK=SOAK),
            *[igt(f"soak-{topology.name}", topology, GPU_MOVES, GPU_LOAD, VVRAM_SOAK=SOAK)
              for topology in topologies.MODELS if translated(topology)],
            *chaos(), gpu_faults(),
            igt("soak-sync", SWITCH, ("vvram_sync",), VVRAM_SOAK=SOAK),
            igt("soak-rdma-once", switch, RDMA_ONCE, RDMA_LOAD, VVRAM_SOAK=SOAK),
            *[igt(f"soak-{topology.name}", topology, (*RDMA_KINDS, *RDMA_ONCE), RDMA_LOAD)
              for topology in rdmas]]


def chaos():
    """The boots with rounds of moves, resets and removals, each of which has numbers of its own."""
    switch, *others = topologies.MODELS
    return [igt(f"soak-chaos-{topology.name}", topology, GPU_CHAOS_LONG, GPU_LOAD,
                VVRAM_SOAK=SOAK, VVRAM_FIRST=number * SOAK)
            for number, topology in enumerate([switch, *filter(translated, others)])]


def installed():
    """The boots of what the packages install."""
    return [igt(f"soak-installed-{topology.name}", topology, INSTALLED)
            for topology in topologies.TOPOLOGIES if of_kinds(topology)]


def arm64():
    """The boots of arm64. QEMU tells devices outside of it nothing of an SMMU."""
    switch, no_route = topologies.ARM64
    original = ARM64_ORIGINAL.get(kernel.flavour(), {})
    programs = {switch: ARM64, no_route: [original.get(name, name) for name in ARM64]}
    boots = [kunit_boot("soak-kunit", switch, ALL_SUITES),
             kunit_boot("soak-kunit-no-route", no_route, NO_SUITES,
                        LAB_WITHOUT=",".join(WITHOUT_DEVICES)),
             *[job(f"soak-{topology.name}", topology, PROGRAMS,
                   {"LAB_TESTS": ",".join(telling(topology, programs[topology])),
                    "VVRAM_EXPECT": topology.decision},
                   load=WAITS, original=topology == no_route) for topology in topologies.ARM64]]
    return [dataclasses.replace(boot, vram=ARM64_VRAM.get(kernel.flavour(), boot.vram))
            for boot in boots]


def own():
    """The boots of the project's own programs, without those that need a NIC or modelled GPUs."""
    return [*[igt(f"check-{topology.name}", machine, telling(topology, (
                  *some(topology, everywhere(topology), (*KINDS, POSTED)), *on_disk(machine))))
              for topology, machine in zip(topologies.TOPOLOGIES, MACHINES)],
            *once("check"), igt("check-bounce", variant("bounce"), BOUNCED),
            igt("check-tracked", disk("tracked"), DISK_BOUNCED),
            igt("check-scramble", disk("scramble"), (*SCRAMBLED, *DISK_SCRAMBLED)),
            igt("check-unmapped", disk("unmapped"), DISK_UNMAPPED),
            *[igt(f"check-{topology.name}", topology, (*on_pair(topology), *TOOL_EVERYWHERE))
              for topology in topologies.PAIRS if of_kinds(topology)],
            *[dataclasses.replace(igt(f"check-original-{name}", topologies.find(name), ORIGINAL),
                                  original=True) for name in ORIGINAL_ON]]


def on_pair(topology):
    """The programs with two GPUs for a machine."""
    return (*PAIR, *(PAIR_ONCE if topology == topologies.PAIRS[0] else ()))


def on_disk(topology):
    """The programs with a disk for a machine, if it has one."""
    if topology not in topologies.DISKS:
        return ()
    return (*DISK_KINDS, *(DISK_ONCE if topology == topologies.DISKS[0] else ()))


def gpus():
    """The boots with modelled GPUs."""
    switch, *others = topologies.MODELS
    return [igt(f"check-{switch.name}", switch,
                (*GPU_KINDS, *GPU_ONCE, *GPU_CHAOS_SHORT, *TOOL_EVERYWHERE, *GPU_FAULTS_OWN),
                GPU_LOAD),
            dataclasses.replace(igt("check-gpu-large", switch, GPU_LARGE, GPU_LOAD), sizes=LARGE),
            *[igt(f"check-{topology.name}", topology,
                  (*((*GPU_KINDS, *GPU_TRANSLATED) if translated(topology) else GPU_PEERS),
                   *TOOL_EVERYWHERE), GPU_LOAD, LAB_EXCEPT=",".join(
                       GPU_HUNG if translated(topology) else (*GPU_HUNG, *GPU_HUNG_DMA)))
              for topology in others]]


def fuzz():
    """The boots of `make fuzz`: random calls, as many as CALLS= says or for TIME= seconds."""
    chosen = os.environ.get("TOPOLOGY")
    machines = [chosen] if chosen else FUZZ_LONG
    calls = qemu.number("CALLS", FUZZ_CALLS) // len(machines)
    return [fuzz_boot(f"fuzz-{name}", topologies.find(name), VVRAM_FUZZ_CALLS=calls,
                      VVRAM_FUZZ_TIME=qemu.number("TIME", FUZZ_SECONDS),
                      VVRAM_FUZZ_GUIDED=qemu.number("GUIDED", 1), VVRAM_SOAK=SOAK)
            for name in machines]


def fuzz_boot(name, topology, **settings):
    """A boot with random calls, and with devices for all drivers and a disk.

    Without the memory controller: with it, an eviction loops for ever if a CPU takes the memory back
    at the same time, which is finding F2.
    """
    boot = igt(name, topology, FUZZ, GPU_LOAD, **settings)
    return dataclasses.replace(boot, arguments=topologies.spare(topology),
                               cmdline="cgroup_disable=memory")


def variant(name, topology=SWITCH):
    """A topology with one of `VARIANTS`."""
    return dataclasses.replace(topology, cmdline=f"{topology.cmdline} {VARIANTS[name]}".strip())


def disk(kind):
    """The machine with a disk that has one of `VARIANTS`."""
    return variant(kind, topologies.find("disk-host-bridge" if kind == "unmapped" else "disk-switch"))


def of_kinds(topology):
    """Whether a topology stands for a kind of address."""
    return topology.name.endswith(KIND_OF_EACH)


def translated(topology):
    """Whether an IOMMU translates the addresses of a topology."""
    return topology.name.endswith("iommu")


def everywhere(topology):
    """The programs of `EVERYWHERE` for a topology; objects in system memory use no route."""
    if of_kinds(topology):
        return (*EVERYWHERE, *TOOL)
    return (*[name for name in EVERYWHERE if name not in (MATRIX, "vvram_p2p")],
            *P2P_OF_ROUTE, *MATRIX_OF_ROUTE, *LIMITS_OF_ROUTE,
            *TOOL_EVERYWHERE, "p2p_agrees@why",
            *(TOOL_REDIRECTED if topology.name == REDIRECTED else ()))


def some(topology, on_all, kinds):
    """The programs for a topology, of those for all and of those for each kind of address."""
    return (*on_all, *(kinds if of_kinds(topology) else ()))


def telling(topology, tests):
    """The tests that say something on a machine, of these."""
    if topologies.ROUTE in topology.has:
        return tests
    return [name for test in tests for name in (
        [f"{test}@{subtest}" for subtest in WITHOUT_ROUTE[test].split()]
        if test in WITHOUT_ROUTE else [test])]


def once(command, **settings):
    """The boots of the programs that run once: several, as a single one would be the longest."""
    shares = [ONCE[number::ONCE_BOOTS] for number in range(ONCE_BOOTS)]
    shares[-1] = GENERIC + shares[-1]
    return [igt(f"{command}-once-{number}", SWITCH, share, IGT_FORCE_DRIVER="vvram", **settings)
            for number, share in enumerate(shares, 1)]


def rdma_boots():
    """The boots with RDMA: the project's tests wherever a NIC may be, and pyverbs'."""
    return [pyverbs("check-pyverbs", PYVERBS, LAB_FLAGS=PYVERBS_FLAGS), *own_rdma()]


def own_rdma():
    """The boots of the project's own programs that need a NIC."""
    switch, *_ = topologies.RDMA
    return [igt("check-rdma-once", switch, RDMA_ONCE, RDMA_LOAD),
            *[igt(f"check-{topology.name}", topology,
                  some(topology, (*RDMA, *RDMA_OF_ROUTE, *TOOL_EVERYWHERE), RDMA_KINDS), RDMA_LOAD,
                  **({} if topology == switch else {"LAB_EXCEPT": ",".join(RDMA_GIVES_UP)}))
              for topology in topologies.RDMA]]


def test(tests, topology):
    """The boot of `make test`."""
    return dataclasses.replace(igt(f"test-{topology.name}", topology, tests), sizes=sizes(),
                               original=os.environ.get("EDU") == "qemu")


def shell(topology):
    """The boot of `make shell`."""
    return qemu.Boot("shell", topology, "shell", 0, sizes=sizes())


def sizes():
    """The sizes of modelled GPUs that are asked for with GPU=."""
    return os.environ.get("GPU") or models.SIZES


def kunit():
    """The boots of KUnit: one of all suites, then those that use devices for each kind of route."""
    return [kunit_boot("check-kunit", SWITCH, ALL_SUITES),
            *[kunit_boot(f"check-kunit-{name}", topologies.find(topology), NO_SUITES,
                         LAB_WITHOUT=",".join(WITHOUT_DEVICES))
              for name, topology in (("bridge", "host-bridge"), ("iommu", "intel-iommu"),
                                     ("no-route", "no-route"))]]


def kunit_boot(name, topology, built_in, modules=ALL_MODULES, **settings):
    """A boot that runs suites: of the kernel, and then of the modules, those that patterns name.

    The suites map addresses at which there is no memory, which QEMU cannot tell a device outside of
    it.
    """
    return job(name, topology, "kunit", {"LAB_SUITES": modules, **settings}, load=BUSY,
               original=True,
               cmdline=f"kunit.enable=1 kunit.autorun=1 kunit.filter_glob={built_in}")


def igt(name, topology, tests, load=WAITS, **settings):
    """A boot that runs tests under igt_runner: programs, or program@subtest, or patterns of them."""
    return job(name, topology, "igt",
               {"LAB_TESTS": ",".join(tests), "LAB_TIMEOUT": TEST_TIMEOUT * longer(settings),
                "VVRAM_EXPECT": topology.decision, **settings}, load=load)


def pyverbs(name, cases=(), **settings):
    """A boot that runs pyverbs' tests: of all modules, or with dma-bufs for some cases.

    A case is a class of importer and the memory, such as pinned/vram.
    """
    return job(name, topologies.RDMA[0], "pyverbs",
               {"LAB_PYVERBS": ",".join(cases) or MODULES, **settings}, load=RDMA_LOAD)


def job(name, topology, what, settings, **more):
    """A boot in real time, with its limits."""
    return qemu.Boot(name, topology, what, BOOT_TIMEOUT * longer(settings),
                     {"VVRAM_SLOWER": SLOWER[kernel.flavour()], **settings},
                     silence=SILENCE * longer(settings), **more)


def longer(settings):
    """The factor by which a boot with these settings may take longer than on an idle processor."""
    return SLOWER[kernel.flavour()] * settings.get("VVRAM_SOAK", 1)
