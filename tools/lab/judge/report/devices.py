# SPDX-License-Identifier: GPL-2.0
"""The tree of PCI devices of a machine, read from QEMU's arguments, and the path of the bytes."""

import json
import re
from dataclasses import dataclass, field

from boot import topologies

IOMMUS = {"intel-iommu": "intel-iommu", "virtio-iommu-pci": "virtio-iommu"}
# The name of a device in the picture, and the line below it.
LABELS = {"pcie-root-port": ("root port", ""), "x3130-upstream": ("switch", "no ACS"),
          "xio3130-downstream": ("port", ""), "ivshmem-plain": ("GPU, its VRAM", "vvram"),
          "edu": ("peer", "edu"), "virtio-net-pci": ("NIC", "soft RoCE"), "nvme": ("disk", "NVMe"),
          "vfio-user-pci": ("GPU with engines", "mgpu")}


@dataclass
class Device:
    """A device, with those below it."""

    name: str
    label: str
    detail: str = ""
    below: list = field(default_factory=list)

    def walk(self):
        """The device and all devices below it, each with its parent."""
        yield self, None
        for child in self.below:
            for device, above in child.walk():
                yield device, above or self

    @property
    def leaves(self):
        """The devices at the ends, from left to right."""
        return [device for device, _ in self.walk() if not device.below]


@dataclass(frozen=True)
class Way:
    """The path of the bytes from the VRAM to the last device, by the names of the devices."""

    names: tuple
    apex: str            # its highest point: a switch, or the host bridge
    open: bool           # whether PCI permits it


def described(spec):
    """(kind, properties) of the argument of -device."""
    if spec.startswith("{"):
        found = json.loads(spec)
        return found.pop("driver"), found
    kind, *settings = spec.split(",")
    return kind, dict(setting.partition("=")[::2] for setting in settings)


def tree(topology):
    """The host bridge of a machine, with all devices below it."""
    root = Device("host-bridge", "CPU and host bridge")
    by_name = {root.name: root}
    words = topology.machine
    for word, spec in zip(words, words[1:]):
        if word != "-device":
            continue
        kind, settings = described(spec)
        if kind in IOMMUS:
            root.detail = f"{IOMMUS[kind]} translates"
            continue
        label, detail = LABELS.get(kind, (kind, ""))
        if kind in ("xio3130-downstream", "pcie-root-port"):
            label = f"{label} {re.sub('[a-z]+', '', settings['id'])}"
        if kind == "ivshmem-plain" and "id" not in settings:
            label = "second GPU"
        if "addr" in settings:
            detail = f"{detail}, function {settings['addr'].partition('.')[2]}"
        if kind == "pcie-root-port" and topology.name == "acs-pair":
            detail = "ACS redirects"
        name = settings.get("id") or f"{kind}-{len(by_name)}"
        device = by_name[name] = Device(name, label, detail)
        by_name[settings.get("bus", root.name)].below.append(device)
    return root


def way(topology, root):
    """The path of the bytes that the kernel has to choose on this machine."""
    above = {device.name: parent for device, parent in root.walk()}
    source = next(device for device in root.leaves if device.name == "gpu")
    target = [device for device in root.leaves if device is not source][-1]

    def up(device):
        names = [device.name]
        while above[names[-1]]:
            names.append(above[names[-1]].name)
        return names

    there, back = up(source), up(target)
    if topology.decision == topologies.BUS:
        # Not above the first device that has both below it.
        apex = next(name for name in there if name in back)
    else:
        apex = root.name
    names = there[:there.index(apex) + 1] + back[:back.index(apex)][::-1]
    return Way(tuple(names), apex, topology.decision != topologies.REFUSED)
