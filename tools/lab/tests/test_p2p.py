# SPDX-License-Identifier: GPL-2.0
"""Tests of what the tool p2p has in common with the kernel: lists, numbers and names."""

import os
import re
import tomllib
import unittest
from pathlib import Path
from unittest import mock

from boot import pipeline
from build import crates, programs, sandbox
from commands import check
from in_caches import InCaches

TOOL = pipeline.REPO / programs.TOOL / "src"
TREE = os.environ.get(check.TREE)
UAPI = pipeline.REPO / "include/uapi/drm"


@unittest.skipUnless(TREE, f"{check.TREE}= names no kernel tree")
class Kernel(unittest.TestCase):
    def setUp(self):
        self.tree = Path(TREE)

    def test_the_list_of_host_bridges_is_the_kernels(self):
        ids = dict(re.findall(r"^#define (PCI_(?:VENDOR|DEVICE)_ID_\w+)\s+(0x\w+)",
                              (self.tree / "include/linux/pci_ids.h").read_text(), re.M))
        entries = re.search(r"pci_p2pdma_whitelist\[\] = {(.*?)\n};",
                            (self.tree / "drivers/pci/p2pdma.c").read_text(), re.S)
        kernels = [(ids[vendor].lower(), ids.get(device, device).lower(), flags != "0")
                   for vendor, device, flags in
                   re.findall(r"{(PCI_\w+),\s*(\w+),\s*(\w+)}", entries[1])]
        self.assertGreater(len(kernels), 20)

        text = (TOOL / "hosts.rs").read_text()
        vendors = dict(re.findall(r"^const (\w+): u16 = (0x\w+);", text, re.M))
        listed = re.search(r"LISTED: .*? = &\[(.*?)\n\];", text, re.S)[1]
        ours = [(vendors[vendor], device or "pci_any_id", same == "true")
                for vendor, device, same in
                re.findall(r"\((\w+), (?:None|Some\((0x\w+)\)), (true|false), ", listed)]
        self.assertEqual(ours, kernels)

    def test_it_is_for_this_kernel(self):
        makefile = (self.tree / "Makefile").read_text()
        version = [re.search(rf"^{name} = (\d+)", makefile, re.M)[1]
                   for name in ("VERSION", "PATCHLEVEL")]
        self.assertIn(f"LIST: (u32, u32) = ({version[0]}, {version[1]});",
                      (TOOL / "hosts.rs").read_text())

    def test_the_list_of_rdma_drivers_is_the_kernels(self):
        hardware = self.tree / "drivers/infiniband/hw"
        register = {path.relative_to(hardware).parts[0] for path in hardware.glob("*/*.c")
                    if re.search(r"\.reg_user_mr_dmabuf\s*=", path.read_text())}
        # The RDMA drivers, with the drivers of the PCI devices that they belong to.
        owners = {"bnxt_re": ["bnxt_en"], "efa": ["efa"], "ionic": ["ionic"],
                  "irdma": ["ice", "i40e", "idpf"], "mana": ["mana"], "mlx5": ["mlx5_core"]}
        self.assertEqual(register, set(owners))
        modules = {name: re.search(r"^obj-\$\(CONFIG_\w+\)\s*\+= (\w+)\.o$",
                                   (hardware / name / "Makefile").read_text(), re.M)[1]
                   for name in owners}
        listed = re.search(r"RDMA_DRIVERS: .*? = \[(.*?)\];", (TOOL / "doctor.rs").read_text(), re.S)
        self.assertEqual(sorted(re.findall(r'\("(\w+)", "(\w+)"\)', listed[1])),
                         sorted((driver, modules[name]) for name in owners
                                for driver in owners[name]))

    def test_mlx5_registers_nothing_without_an_option(self):
        text = (self.tree / "drivers/infiniband/hw/mlx5/mr.c").read_text()
        body = re.search(r"^struct ib_mr \*mlx5_ib_reg_user_mr_dmabuf\(.*?^}", text, re.M | re.S)[0]
        self.assertIn("!IS_ENABLED(CONFIG_INFINIBAND_ON_DEMAND_PAGING))\n\t\treturn ERR_PTR(", body)


class Uapi(unittest.TestCase):
    def setUp(self):
        self.text = (TOOL / "uapi.rs").read_text()

    def test_ioctls_have_the_numbers_of_the_drivers(self):
        ours = {name: (int(attachments, 16), int(query, 16)) for name, attachments, query in
                re.findall(r'name: "(\w+)",\s+attachments: (\w+),\s+query: (\w+),', self.text)}
        theirs = {}
        for header in UAPI.glob("*_drm.h"):
            name = header.stem.removesuffix("_drm")
            found = [re.search(rf"#define DRM_{name.upper()}_\w*{what}\s+(0x\w+)",
                               header.read_text()) for what in ("ATTACHMENTS", "PEER_QUERY")]
            if all(found):
                theirs[name] = tuple(int(it[1], 16) for it in found)
        self.assertEqual(ours, theirs)

    def test_reasons_have_the_names_that_debugfs_has(self):
        header = (UAPI / "drm_peer.h").read_text()
        theirs = {int(number): name.lower().replace("_", "-") for name, number in
                  re.findall(r"DRM_PEER_REASON_(\w+) = (\d+)", header)}
        ours = {int(number): name for number, name in
                re.findall(r'^\s+(\d+) => "([\w-]+)",$', self.text, re.M)}
        self.assertEqual(ours, theirs)

    def test_the_man_page_explains_each_reason(self):
        page = (TOOL.parent / "p2p.1").read_text()
        section = re.search(r"^\.SH REASONS\n(.*?)^\.SH ", page, re.M | re.S)[1]
        explained = re.findall(r"^\.TP\n([\w-]+)\n\S", section, re.M)
        self.assertEqual(sorted(["none", *explained]),
                         sorted(re.findall(r'^\s+\d+ => "([\w-]+)",$', self.text, re.M)))


class Glossary(unittest.TestCase):
    def test_it_has_each_bit_of_acs(self):
        names = re.search(r"ACS_NAMES: .*? = \[(.*?)\];", (TOOL / "config.rs").read_text(), re.S)[1]
        text = (pipeline.REPO / "Documentation/gpu/peer-to-peer-terms.rst").read_text()
        listed = re.search(r"^   ACS\n(.*?)^   \w", text, re.M | re.S)[1]
        self.assertEqual(re.findall(r"^      (\w+)$", listed, re.M), re.findall(r'"(\w+)"', names))


class Crates(InCaches):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch("build.debianroot.networked", lambda box: box))

    def test_they_are_fetched_once(self):
        steps = mock.MagicMock()
        step = steps.step.return_value.__enter__.return_value
        step.run.side_effect = lambda _, hint, box: (box.binds["/build/unpacked"] / "a").touch()
        for _ in range(2):
            crates.SET.ensure(steps, sandbox.Sandbox("/"))
        step.run.assert_called_once()
        self.assertTrue((crates.SET.path() / "a").exists())

    def test_each_one_that_is_named_is_fetched(self):
        for crate in (programs.CRATE, programs.TOOL):
            manifest = tomllib.loads((pipeline.REPO / crate / "Cargo.toml").read_text())
            for name in (*manifest["dependencies"], *manifest.get("dev-dependencies", ())):
                self.assertIn(f"librust-{name.replace('_', '-')}-dev", crates.PACKAGES)


if __name__ == "__main__":
    unittest.main()
