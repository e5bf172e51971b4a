# SPDX-License-Identifier: GPL-2.0
"""The machines that the lab boots, and the decision that the kernel must make on each.

The q35 host bridge is not on the kernel's list of bridges that forward peer
to peer, so a path through it exists only by the rule for AMD processors since
Zen: `-cpu max,family=25` is one, `-cpu max` is not.
"""

import dataclasses
from dataclasses import dataclass

from boot import models

AMD = ("-cpu", "max,family=25")
OTHER = ("-cpu", "max")
VRAM = "ivshmem-plain,id=gpu,memdev=vram"
# The names of a second GPU, which uses the memory of the first one, and the other way round.
VRAM2 = "ivshmem-plain,id=gpu2,memdev=vram2"
MEMORY2 = ("-object", "memory-backend-ram,id=vram2,size=16M,share=on")
# The default mask of 28 bits silently truncates addresses: writes land in RAM.
PEER = f"edu,id={models.PEER},dma_mask=0xffffffffffffffff"
INTEL_IOMMU = ("-device", "intel-iommu,intremap=off")
# With it QEMU tells devices outside of it which addresses the IOMMU maps.
INTEL_IOMMU_TOLD = ("-device", "intel-iommu,intremap=off,caching-mode=on")

# Features of a machine that a test may need, as the programs name them.
ROUTE = "route"             # between the devices, and PCI permits it
OWN_SLOT = "own-slot"       # for each device: it is unplugged and reset alone
IOMMU = "iommu"             # which translates addresses of the peer
NEEDS = frozenset({ROUTE, OWN_SLOT, IOMMU})

BUS = "bus"
HOST_BRIDGE = "host-bridge"
REFUSED = "refused"


@dataclass(frozen=True)
class Topology:
    """A machine, and its expectations."""

    name: str
    title: str
    machine: tuple       # QEMU arguments
    decision: str
    distance: int        # as pci_p2pdma_distance_many() counts; -1 is no path
    cmdline: str = ""    # more kernel parameters
    has: frozenset = frozenset({ROUTE, OWN_SLOT})
    models: tuple = ()   # names of the modelled devices

    @property
    def is_translated(self):
        """Whether devices use addresses of an IOMMU."""
        return IOMMU in self.has

    @property
    def is_told(self):
        """Whether modelled devices know each address that the IOMMU maps.

        virtio-iommu does not tell them of the BARs of other devices.
        """
        return INTEL_IOMMU_TOLD[1] in self.machine

    @property
    def reason(self):
        """The reason why it is not peer to peer, as the programs name it."""
        return "no-route" if self.decision == REFUSED else "none"


def two_root_ports():
    """Provider and peer below a root port each."""
    return ("-device", "pcie-root-port,id=rp1,chassis=1",
            "-device", "pcie-root-port,id=rp2,chassis=2",
            "-device", f"{VRAM},bus=rp1",
            "-device", f"{PEER},bus=rp2")


def switch():
    """Provider and peer below two ports of one switch, which has no ACS."""
    return ("-device", "pcie-root-port,id=rp1,chassis=1",
            "-device", "x3130-upstream,id=up,bus=rp1",
            "-device", "xio3130-downstream,id=d1,bus=up,chassis=2,slot=1",
            "-device", "xio3130-downstream,id=d2,bus=up,chassis=3,slot=2",
            "-device", f"{VRAM},bus=d1",
            "-device", f"{PEER},bus=d2")


def two_functions():
    """Provider and peer as functions of one slot, below a root port with ACS."""
    return ("-device", "pcie-root-port,id=rp1,chassis=1",
            "-device", f"{VRAM},bus=rp1,addr=0.0,multifunction=on",
            "-device", f"{PEER},bus=rp1,addr=0.1")


def below_the_switch():
    """A second GPU below a third port of the switch."""
    return (*MEMORY2, "-device", "xio3130-downstream,id=d3,bus=up,chassis=4,slot=3",
            "-device", f"{VRAM2},bus=d3")


def third_root_port():
    """A second GPU below a root port of its own."""
    return (*MEMORY2, "-device", "pcie-root-port,id=rp3,chassis=3",
            "-device", f"{VRAM2},bus=rp3")


TOPOLOGIES = (
    Topology("switch", "two ports of a switch", (*OTHER, *switch()), BUS, 4),
    Topology("host-bridge", "two root ports, AMD Zen", (*AMD, *two_root_ports()), HOST_BRIDGE, 4),
    Topology("intel-iommu", "the same behind intel-iommu",
             (*AMD, *INTEL_IOMMU, *two_root_ports()), HOST_BRIDGE, 4, "intel_iommu=on",
             has=NEEDS),
    Topology("no-route", "two root ports, not Zen", (*OTHER, *two_root_ports()), REFUSED, -1,
             has=frozenset({OWN_SLOT})),
    # An IOMMU makes the kernel turn on ACS redirection: the pair may no longer talk directly.
    Topology("acs-pair", "two functions of a slot, ACS",
             (*AMD, *INTEL_IOMMU, *two_functions()), HOST_BRIDGE, 2, "intel_iommu=on",
             has=frozenset({ROUTE, IOMMU})),
    Topology("virtio-iommu", "two root ports, virtio-iommu",
             (*AMD, "-device", "virtio-iommu-pci", *two_root_ports()), HOST_BRIDGE, 4,
             has=NEEDS),
)


# A network device, of which soft RoCE makes an RDMA device. Both ends of a connection are on it, so
# that there is no wire.
NIC = "virtio-net-pci,netdev=net,romfile="
WIRE = ("-netdev", "user,id=net,restrict=on")


def nic_below_the_switch():
    """A NIC below a fourth port of the switch."""
    return (*WIRE, "-device", "xio3130-downstream,id=d4,bus=up,chassis=5,slot=4",
            "-device", f"{NIC},bus=d4")


def fourth_root_port():
    """A NIC below a root port of its own."""
    return (*WIRE, "-device", "pcie-root-port,id=rp4,chassis=4", "-device", f"{NIC},bus=rp4")


# The same with two GPUs: the decision between them is the same as for the peer.
PAIRS = (
    Topology("pair-switch", "two GPUs below a switch",
             (*OTHER, *switch(), *below_the_switch()), BUS, 4),
    Topology("pair-host-bridge", "two GPUs below root ports, AMD Zen",
             (*AMD, *two_root_ports(), *third_root_port()), HOST_BRIDGE, 4),
    Topology("pair-intel-iommu", "the same behind intel-iommu",
             (*AMD, *INTEL_IOMMU, *two_root_ports(), *third_root_port()), HOST_BRIDGE, 4,
             "intel_iommu=on", has=NEEDS),
    Topology("pair-no-route", "two GPUs below root ports, not Zen",
             (*OTHER, *two_root_ports(), *third_root_port()), REFUSED, -1,
             has=frozenset({OWN_SLOT})),
)


# The same with a NIC: the decision for the NIC is the same as between the GPUs.
RDMA = tuple(dataclasses.replace(
    pair, name=pair.name.replace("pair", "rdma"), title=f"{pair.title}, a NIC",
    machine=(*pair.machine, *(nic_below_the_switch() if pair.decision == BUS
                              else fourth_root_port())))
             for pair in PAIRS)

# A disk whose writes are discarded at the end of a boot. Its initial content is the guest's root,
# which no test reads.
DISK = ("-drive", "if=none,id=disk,file=/build/guest.erofs,format=raw,snapshot=on")
NVME = "nvme,id=nvme,serial=p2p,drive=disk"


def disk_below_the_switch():
    """A disk below a third port of the switch."""
    return (*DISK, "-device", "xio3130-downstream,id=d3,bus=up,chassis=4,slot=3",
            "-device", f"{NVME},bus=d3")


def disk_below_a_root_port():
    """A disk below a root port of its own."""
    return (*DISK, "-device", "pcie-root-port,id=rp3,chassis=3", "-device", f"{NVME},bus=rp3")


# The same with a disk: the decision for the disk is the same as for the peer.
DISKS = (
    Topology("disk-switch", "a disk below the switch",
             (*OTHER, *switch(), *disk_below_the_switch()), BUS, 4),
    Topology("disk-host-bridge", "a disk below a root port, AMD Zen",
             (*AMD, *two_root_ports(), *disk_below_a_root_port()), HOST_BRIDGE, 4),
    Topology("disk-intel-iommu", "the same behind intel-iommu",
             (*AMD, *INTEL_IOMMU, *two_root_ports(), *disk_below_a_root_port()), HOST_BRIDGE, 4,
             "intel_iommu=on", has=NEEDS),
    Topology("disk-no-route", "a disk below a root port, not Zen",
             (*OTHER, *two_root_ports(), *disk_below_a_root_port()), REFUSED, -1,
             has=frozenset({OWN_SLOT})),
)

# Modelled GPUs.
GPUS = ("gpu-a", "gpu-b")


def gpus_below_the_switch():
    """Modelled GPUs below a third and a fourth port of the switch."""
    return [word for port, name in enumerate(GPUS, 3) for word in
            ("-device", f"xio3130-downstream,id=d{port},bus=up,chassis={port + 1},slot={port}",
             *models.device(name, f"d{port}"))]


def gpus_below_root_ports():
    """Modelled GPUs below root ports of their own."""
    return [word for port, name in enumerate(GPUS, 3) for word in
            ("-device", f"pcie-root-port,id=rp{port},chassis={port}",
             *models.device(name, f"rp{port}"))]


# The same with two GPUs that have engines, which are programs outside of QEMU.
MODELS = (
    Topology("gpu-switch", "two modelled GPUs below the switch",
             (*OTHER, *switch(), *gpus_below_the_switch()), BUS, 4, models=GPUS),
    Topology("gpu-host-bridge", "two modelled GPUs below root ports, AMD Zen",
             (*AMD, *two_root_ports(), *gpus_below_root_ports()), HOST_BRIDGE, 4, models=GPUS),
    Topology("gpu-intel-iommu", "the same behind intel-iommu",
             (*AMD, *INTEL_IOMMU_TOLD, *two_root_ports(), *gpus_below_root_ports()), HOST_BRIDGE,
             # DMA addresses are handed out from the top of what the IOMMU has.
             4, "intel_iommu=on iommu.forcedac=1", has=NEEDS, models=GPUS),
)


def modelled(topology):
    """The same machine with the modelled edu in place of QEMU's."""
    told = {INTEL_IOMMU[1]: INTEL_IOMMU_TOLD[1]}
    words = [told.get(word, word) for word in topology.machine]
    [at] = [number for number, word in enumerate(words) if word.startswith(PEER)]
    where = dict(setting.split("=") for setting in words[at].removeprefix(f"{PEER},").split(","))
    words[at] = models.device(models.PEER, **where)[1]
    return dataclasses.replace(topology, machine=tuple(words),
                               models=(models.PEER, *topology.models))


def spare(topology):
    """More devices for a machine: two GPUs, for other drivers than vvram, and a disk."""
    below = "bus=up" in " ".join(topology.machine)
    devices = [*[f"ivshmem-plain,memdev=spare{number}" for number in (1, 2)], NVME]
    words = [word for number in (1, 2) for word in
             ("-object", f"memory-backend-ram,id=spare{number},size=16M,share=on")]
    words += DISK
    for number, device in enumerate(devices, 10):
        port = (f"xio3130-downstream,id=spare-port{number},bus=up,slot={number}" if below
                else f"pcie-root-port,id=spare-port{number}")
        words += ("-device", f"{port},chassis={number}",
                  "-device", f"{device},bus=spare-port{number}")
    return tuple(words)


# QEMU's `virt`, whose host bridge is not on the list either: there is a route below a switch only.
# In front of an IOMMU QEMU translates addresses of the bus, too, which no switch does: the SMMU is
# where peer to peer is refused. The processor has pages of 4 and of 64 KiB.
ARM = ("-cpu", "cortex-a76")
SMMU = ("-machine", "iommu=smmuv3")
ARM64 = (
    Topology("switch", "two ports of a switch, arm64", (*ARM, *switch()), BUS, 4),
    Topology("no-route", "two root ports behind an SMMU", (*ARM, *SMMU, *two_root_ports()), REFUSED,
             -1, has=frozenset({OWN_SLOT})),
)

ALL = TOPOLOGIES + PAIRS + RDMA + DISKS + MODELS


def find(name):
    """The topology of that name, or None."""
    return next((t for t in ALL if t.name == name), None)
