// SPDX-License-Identifier: GPL-2.0

//! A laptop: one GPU with a small BAR, a drive, and ports without ACS; and smaller machines.

mod common;

use common::{Function, Tree};

const RADEON: (u16, u16) = (0x1002, 0x73ff);
const GPU: &str = "0000:01:00.0";
const DRIVE: &str = "0000:02:00.0";

fn laptop(name: &str, vendor: &str, family: u32, options: &str) -> Tree {
    let tree = Tree::new(name);
    tree.kernel("7.3.0-laptop", options);
    tree.cpu(vendor, family, "AMD Ryzen 7 5800H with Radeon Graphics");
    tree.write("proc/sys/kernel/hostname", "lappy\n");
    tree.write(
        "etc/passwd",
        "root:x:0:0::/root:/bin/sh\neve:x:1001:1001::/srv/people/eve:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n",
    );
    tree.add(
        "pci0000:00",
        "0000:00:00.0",
        &Function::host((0x1022, 0x1630)),
    );
    for (port, address, function) in [
        (
            "0000:00:01.1",
            GPU,
            Function {
                id: RADEON,
                bar: 256 << 20,
                is_resizable: true,
                driver: "amdgpu",
                names: vec![
                    ("drm", "card0"),
                    ("drm", "renderD128"),
                    ("drm", "card0-DP-1"),
                ],
                ..Function::gpu("renderD128")
            }
            .in_group("12", "DMA-FQ"),
        ),
        (
            "0000:00:02.1",
            DRIVE,
            Function::nvme("nvme0").in_group("13", "DMA-FQ"),
        ),
    ] {
        tree.add("pci0000:00", port, &Function::port(4, None));
        tree.add(&format!("pci0000:00/{port}"), address, &function);
    }
    // A second function of the slot, and one that accesses nothing.
    let audio = Function::endpoint(0x04_0300, (0x1002, 0xab28), "snd_hda_intel");
    tree.add("pci0000:00/0000:00:01.1", "0000:01:00.1", &audio);
    let idle = Function {
        is_master: false,
        ..Function::endpoint(0x08_8000, (0x1022, 0x1641), "")
    };
    tree.add("pci0000:00", "0000:00:18.0", &idle);
    tree
}

#[test]
fn zen_forwards() {
    let tree = laptop("zen", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    let pair = tree.pair(GPU, DRIVE);
    assert_eq!(pair["path"], "host-bridge", "{pair:#}");
    assert_eq!(pair["distance"], 4);
    assert_eq!(pair["sysfs"]["host"]["forwards"], "cpu");
    let slot = tree.pair(GPU, "0000:01:00.1");
    assert_eq!(
        (&slot["path"], &slot["distance"]),
        (&"bus".into(), &2.into()),
        "{slot:#}"
    );
    let (status, text, _) = tree.run(&["why", "card0", "/dev/nvme0"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("by IOVA, 4 hops"), "{text}");
    assert!(text.contains("AMD since Zen"), "{text}");
}

#[test]
fn an_old_kernel_may_not_go_by_the_processor() {
    let tree = laptop("zen-old", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    tree.write("proc/sys/kernel/osrelease", "5.6.0-laptop\n");
    let (status, text, _) = tree.run(&["why", "renderD128", "nvme0"]);
    assert_eq!(status, 4, "{text}");
    let advice = "  - look whether drivers/pci/p2pdma.c of the source of this kernel goes by the \
                  processor, in cpu_supports_p2pdma()\n  - boot Linux 7.3";
    assert!(text.contains(advice), "{text}");
    // Before that, the bridge was on the list.
    assert!(text.contains("  - compare 1022:1630 with"), "{text}");
    tree.write("proc/sys/kernel/osrelease", "5.8.0-laptop\n");
    let pair = tree.pair(GPU, DRIVE);
    assert_eq!(pair["sysfs"]["host"]["forwards"], "listed", "{pair:#}");
    tree.write("proc/sys/kernel/osrelease", "5.4.0-laptop\n");
    let (status, text, _) = tree.run(&["why", "renderD128", "nvme0"]);
    assert_eq!(status, 1, "{text}");
    assert!(
        text.contains("  - boot Linux 5.8 or newer, which has it"),
        "{text}"
    );
}

#[test]
fn processors_before_zen_do_not_forward() {
    let tree = laptop("old", "AuthenticAMD", 0x16, "CONFIG_PCI_P2PDMA=y\n");
    let pair = tree.pair(GPU, DRIVE);
    assert_eq!(pair["path"], "refused", "{pair:#}");
    assert_eq!(pair["sysfs"]["host"]["id"], "1022:1630");
    let (status, text, _) = tree.run(&["why", "renderD128", "nvme0"]);
    assert_eq!(status, 1);
    assert!(text.contains("put both below one switch"), "{text}");
}

#[test]
fn without_p2pdma_nothing_is_peer_to_peer() {
    let tree = laptop(
        "without",
        "AuthenticAMD",
        25,
        "# CONFIG_PCI_P2PDMA is not set\n",
    );
    for client in [DRIVE, "0000:01:00.1"] {
        let pair = tree.pair(GPU, client);
        assert_eq!(pair["path"], "refused", "{pair:#}");
        assert_eq!(pair["sysfs"]["has_p2pdma"], false);
    }
    let (_, text, _) = tree.run(&["why", "renderD128", "nvme0"]);
    assert!(
        text.contains("boot a kernel with CONFIG_PCI_P2PDMA=y"),
        "{text}"
    );
    let (_, text, _) = tree.run(&["topo"]);
    assert!(text.contains("nothing is peer to peer"), "{text}");
}

#[test]
fn ports_that_cannot_be_read_are_not_in_order() {
    let redirects = "no port redirects";
    for (name, readable, options) in [
        ("readable", 4096, "CONFIG_PCI_P2PDMA=y\n"),
        ("hidden", 64, "CONFIG_PCI_P2PDMA=y\n"),
        ("hidden-without", 64, "# CONFIG_PCI_P2PDMA is not set\n"),
    ] {
        let tree = Tree::new(name);
        tree.kernel("7.3.0", options);
        let port = |kind| Function {
            readable,
            ..Function::port(kind, None)
        };
        let mut above = "pci0000:00".to_string();
        for (address, kind) in [("0000:00:01.0", 4), ("0000:01:00.0", 5)] {
            tree.add(&above, address, &port(kind));
            above = format!("{above}/{address}");
        }
        for (address, below, function) in [
            ("0000:02:00.0", "0000:03:00.0", Function::gpu("renderD128")),
            ("0000:02:01.0", "0000:04:00.0", Function::nvme("nvme0")),
        ] {
            tree.add(&above, address, &port(6));
            tree.add(&format!("{above}/{address}"), below, &function);
        }
        let (_, text, _) = tree.run(&["doctor"]);
        let hidden = "the ACS bits of 3 ports cannot be read: run it as root";
        assert_eq!(text.contains(redirects), readable == 4096, "{text}");
        assert_eq!(text.contains(hidden), readable == 64, "{text}");
    }
}

#[test]
fn functions_without_bus_mastering_are_left_out() {
    let tree = laptop("left", "AuthenticAMD", 25, "");
    let (_, text, _) = tree.run(&["topo"]);
    assert!(
        text.contains("01:00.1") && !text.contains("00:18.0"),
        "{text}"
    );
    assert!(!text.contains("card0-DP-1"), "{text}");
}

#[test]
fn names() {
    let tree = laptop("names", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    for name in [
        GPU,
        "01:00.0",
        "renderD128",
        "card0",
        "/dev/dri/renderD128",
        "/sys/bus/pci/devices/0000:01:00.0",
        "/sys/class/drm/card0",
    ] {
        let (status, why) = tree.json(&["why", name, "nvme0"]);
        assert_eq!(
            (status, &why["provider"]["address"]),
            (0, &GPU.into()),
            "{name}"
        );
    }
    // Of a soft RoCE device the netdev is asked.
    let nic = Function::endpoint(0x02_0000, (0x8086, 0x15f3), "igc");
    let nic = Function {
        names: vec![("net", "eth0")],
        ..nic
    };
    tree.add("pci0000:00", "0000:00:19.0", &nic);
    tree.write("sys/class/infiniband/rxe0/parent", "eth0\n");
    let (_, why) = tree.json(&["why", "renderD128", "rxe0"]);
    assert_eq!(why["client"]["address"], "0000:00:19.0");
    // Some nodes are named after their device.
    tree.write("sys/class/misc/edu-peer-0000:00:19.0/dev", "10:120\n");
    let (_, why) = tree.json(&["why", "renderD128", "edu-peer-0000:00:19.0"]);
    assert_eq!(why["client"]["address"], "0000:00:19.0");
    for command in ["why", "report"] {
        let (status, text, error) = tree.run(&[command, "renderD128", "card0"]);
        assert_eq!((status, &*text), (2, ""), "{error}");
        let want = "\"renderD128\" and \"card0\" are the same device, 0000:01:00.0\n";
        assert!(error.contains(want), "{error}");
    }
    for name in [
        "nope",
        "09:00.0",
        "",
        "/dev/",
        "../../sys",
        "0000:01:00.0.0",
    ] {
        let (status, _, error) = tree.run(&["why", name, "nvme0"]);
        assert_eq!(status, 2, "{name}");
        assert!(
            error.contains(&format!("no PCI device is behind \"{name}\"; there are "))
                && error.contains("renderD128"),
            "{error}"
        );
    }
}

#[test]
fn a_host_behind_a_device_has_a_domain_of_its_own() {
    let tree = laptop("vmd", "GenuineIntel", 6, "CONFIG_PCI_P2PDMA=y\n");
    let vmd = Function::endpoint(0x01_0400, (0x8086, 0x9a0b), "vmd");
    tree.add("pci0000:00", "0000:00:0e.0", &vmd);
    let below = "pci0000:00/0000:00:0e.0/pci10000:e0";
    tree.add(below, "10000:e0:06.0", &Function::port(4, None));
    let port = format!("{below}/10000:e0:06.0");
    tree.add(&port, "10000:e1:00.0", &Function::nvme("nvme1"));
    let pair = tree.pair("10000:e1:00.0", DRIVE);
    assert_eq!(pair["path"], "refused", "{pair:#}");
    assert_eq!(pair["sysfs"]["hops"], 4);
    assert!(pair["sysfs"]["bridge"].is_null());
    // A root port stands for a host bridge without a function 0 of device 0.
    assert_eq!(pair["sysfs"]["host"]["id"], "1000:c030");
    let (_, why) = tree.json(&["why", "nvme1", "nvme0"]);
    assert_eq!(
        why["provider"]["above"],
        serde_json::json!(["10000:e0:06.0"])
    );
}

#[test]
fn a_small_bar() {
    let tree = laptop(
        "bar",
        "AuthenticAMD",
        25,
        "CONFIG_PCI_P2PDMA=y\nCONFIG_DMABUF_MOVE_NOTIFY=n\nCONFIG_HSA_AMD_P2P=n\n",
    );
    let (status, doctor) = tree.json(&["doctor"]);
    assert_eq!(status, 1);
    let checks = doctor["checks"].as_array().unwrap();
    let state = |part: &str| {
        let found = checks
            .iter()
            .find(|it| it["text"].as_str().unwrap().contains(part));
        found.unwrap_or_else(|| panic!("{part}: {doctor:#}"))["state"].clone()
    };
    assert_eq!(state("256 MiB and can be resized"), "to do");
    assert_eq!(state("CONFIG_DMABUF_MOVE_NOTIFY"), "to do");
    assert_eq!(state("CONFIG_HMM_MIRROR"), "to do");
    assert_eq!(state("CONFIG_HSA_AMD_P2P: without it ROCm"), "to do");
    assert_eq!(state("devices use IOVAs through the host"), "ok");
    assert_eq!(state("no RDMA device"), "ok");
    assert_eq!(state("driver amdgpu does not report paths"), "ok");
}

#[test]
fn a_bar_below_the_largest_size_that_it_offers() {
    let tree = laptop("offers", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    let at = |file: &str| format!("sys/bus/pci/devices/{GPU}/{file}");
    let bar = || {
        let (_, doctor) = tree.json(&["doctor"]);
        let checks = doctor["checks"].as_array().unwrap();
        let word = |it: &serde_json::Value, key: &str| it[key].as_str().unwrap().to_string();
        let mut of_bar = checks.iter().filter(|it| word(it, "text").contains("BAR "));
        let found = of_bar.next().unwrap_or_else(|| panic!("{doctor:#}"));
        assert!(of_bar.next().is_none(), "{doctor:#}");
        (word(found, "state"), word(found, "text"))
    };
    // Sizes of 256 MiB to 16 GiB.
    tree.write(&at("resource0_resize"), "0000000000007f00\n");
    let advice = "turn on Above 4G Decoding and Resizable BAR in the BIOS";
    let want = format!("its largest BAR has 256 MiB and can be resized to 16 GiB: {advice}");
    assert_eq!(bar(), ("to do".into(), want));
    // A BAR of 8 GiB may not show all of VRAM either. A smaller one, of doorbells, does not count.
    tree.write(
        &at("resource"),
        "0x0000080000000000 0x00000801ffffffff 0x000000000014220c\n\
         0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
         0x0000080200000000 0x00000802001fffff 0x000000000014220c\n",
    );
    tree.write(&at("resource2_resize"), "00000000000001fe\n");
    let want = format!("its largest BAR has 8 GiB and can be resized to 16 GiB: {advice}");
    assert_eq!(bar(), ("to do".into(), want));
    tree.write(&at("resource0_resize"), "0000000000003f00\n");
    let want = "its largest BAR has 8 GiB, the largest size that it offers";
    assert_eq!(bar(), ("ok".into(), want.into()));
    // A BAR that is not resizable offers no sizes.
    tree.write(&at("resource0_resize"), "0000000000000000\n");
    assert_eq!(bar(), ("ok".into(), "its largest BAR has 8 GiB".into()));
}

#[test]
fn bounce_buffers_for_all() {
    let tree = laptop("forced", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    let parameters = |line: &str| {
        tree.write("proc/cmdline", line);
        let (_, doctor) = tree.json(&["doctor"]);
        let checks = doctor["checks"].as_array().unwrap().iter();
        let of_kernel = checks.filter(|it| it["what"] == "kernel parameters");
        let word = |it: &serde_json::Value, key: &str| it[key].as_str().unwrap().to_string();
        of_kernel
            .map(|it| (word(it, "state"), word(it, "text")))
            .collect::<Vec<_>>()
    };
    for (line, value) in [
        ("quiet swiotlb=force iommu=pt\n", "force"),
        ("iommu=pt swiotlb=65536,force\n", "65536,force"),
    ] {
        let found = parameters(line);
        assert_eq!(found.len(), 2, "{found:?}");
        let want = format!(
            "boot without swiotlb={value}: it makes the kernel copy all DMA to system memory, and \
             direct I/O to VRAM through a host bridge then never ends"
        );
        assert_eq!(found[1], ("to do".into(), want));
        assert!(
            found[0].0 == "ok" && found[0].1.contains("iommu=pt"),
            "{found:?}"
        );
    }
    let found = parameters("swiotlb=65536 iommu=pt\n");
    assert_eq!(found, [("ok".into(), "swiotlb=65536 iommu=pt".into())]);
}

#[test]
fn lockdown() {
    let tree = laptop("lockdown", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    let finding = || {
        let (_, doctor) = tree.json(&["doctor"]);
        let checks = doctor["checks"].as_array().unwrap();
        let found = checks.iter().find(|it| it["what"] == "lockdown").unwrap();
        let word = |key: &str| found[key].as_str().unwrap().to_string();
        (word("state"), word("text"))
    };
    let off = ("ok".into(), "off: programs of root can map BARs".into());
    // A kernel without the option has no such file.
    assert_eq!(finding(), off);
    let has_it = "CONFIG_SECURITY_LOCKDOWN_LSM=y\n";
    tree.write("boot/config-7.3.0-laptop", has_it);
    let mount = "mount -t securityfs securityfs /sys/kernel/security, to see it";
    assert_eq!(finding(), ("unknown".into(), mount.into()));
    // The LSM may be off although securityfs is mounted.
    tree.write("sys/kernel/security/lsm", "capability");
    assert_eq!(finding(), off);
    let file = "sys/kernel/security/lockdown";
    tree.write(file, "[none] integrity confidentiality\n");
    assert_eq!(finding(), off);
    tree.write(file, "none [integrity] confidentiality\n");
    let (state, text) = finding();
    assert_eq!(state, "ok");
    let barred = "integrity: drivers are not concerned, but no program can map a BAR, as p2p-rdma \
                  does; ";
    assert!(text.starts_with(barred), "{text}");
    tree.write(file, "none integrity [confidentiality]\n");
    let (state, text) = finding();
    assert_eq!(state, "ok");
    assert!(
        text.starts_with("confidentiality: drivers are not concerned")
            && text.contains("p2p watch sees no events"),
        "{text}"
    );
}

#[test]
fn buffers() {
    let tree = laptop("buffers", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    // The copy has some files of /proc, but no process.
    let blind = "neither debugfs nor a process in /proc can be read";
    let (status, text, error) = tree.run(&["ls"]);
    assert_eq!(status, 3, "{text}");
    assert!(error.contains(blind), "{error}");
    let (_, report, _) = tree.run(&["report"]);
    for text in [text, report] {
        let note = format!("note: {blind}\n");
        assert!(
            text.contains("no buffers that can be seen\n") && text.contains(&note),
            "{text}"
        );
    }
    let (status, ls) = tree.json(&["ls"]);
    assert_eq!(status, 3, "{ls:#}");
    assert!(ls["notes"].to_string().contains(blind), "{ls:#}");
    // A process without buffers is a source, but others may have some.
    tree.write("proc/811/comm", "init\n");
    tree.write("proc/811/fd/0", "");
    let (status, text, _) = tree.run(&["ls"]);
    assert_eq!(status, 0, "{text}");
    assert!(
        text.contains("no buffers that can be seen\n") && !text.contains(blind),
        "{text}"
    );
    tree.write("sys/kernel/debug/dma_buf/bufinfo", "Dma-buf Objects:\n");
    let (status, text, _) = tree.run(&["ls"]);
    assert_eq!((status, &*text), (0, "no buffers\n"));
    tree.write(
        "sys/kernel/debug/dma_buf/bufinfo",
        "\nDma-buf Objects:\nsize\tflags\tmode\tcount\texp_name\tino\tname\n\
         00008192\t00000002\t00080007\t00000002\tamdgpu\t00000077\tframe\n\
         \tAttached Devices:\n\t0000:02:00.0\nTotal 1 devices attached\n\n",
    );
    tree.write("proc/812/comm", "render\n");
    tree.write("proc/812/fd/9", "");
    tree.write("proc/812/fd/10", "");
    tree.write(
        "proc/812/fdinfo/9",
        "pos:\t0\nino:\t77\nsize:\t8192\ncount:\t2\nexp_name:\tamdgpu\n",
    );
    tree.write("proc/812/fdinfo/10", "pos:\t0\nino:\t5\n");
    tree.write(
        "proc/812/maps",
        "7f00-7f10 rw-s 00000000 00:0b 77   /dmabuf:\n",
    );
    let (status, ls) = tree.json(&["ls"]);
    assert_eq!(status, 0, "{ls:#}");
    let buffers = ls["buffers"].as_array().unwrap();
    assert_eq!(buffers.len(), 1, "{ls:#}");
    let buffer = &buffers[0];
    assert_eq!(
        (&buffer["inode"], &buffer["size"]),
        (&77.into(), &8192.into())
    );
    assert_eq!(buffer["exporter"], "amdgpu");
    assert_eq!(buffer["importers"][0]["device"], DRIVE);
    assert!(buffer["importers"][0]["path"].is_null());
    let want = serde_json::json!([{ "pid": 812, "comm": "render", "fd": 9, "mapped": true }]);
    assert_eq!(buffer["holders"], want);
    let (_, text, _) = tree.run(&["ls"]);
    assert!(text.contains("placement unknown"), "{text}");
    assert!(
        text.contains("<-       0000:02:00.0 (nvme0)") && text.contains("render (812)"),
        "{text}"
    );
}

#[test]
fn buffers_that_a_driver_lists() {
    let tree = laptop("listed", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    let gpu = Function {
        driver: "vvram",
        names: vec![("drm", "renderD129")],
        ..Function::gpu("renderD129")
    };
    tree.add("pci0000:00", "0000:00:1a.0", &gpu);
    tree.write(
        "sys/kernel/debug/dri/0000:00:1a.0/buffers",
        "buffer id=5 size=8192 domain=either vram_or_fail=0 placement=system visible=0 pinned=0 \
         exported=1 ino=77 orphan=1 client=7 name=frame pid=812 comm=render\n\
         \timporter=0000:02:00.0 driver=nvme path=system reason=other-importer hops=4 flags=dynamic\n",
    );
    tree.write(
        "sys/kernel/debug/dri/0000:00:1a.0/counters",
        "moves - 10\nmap-system no-vram 0\n",
    );
    tree.write(
        "sys/kernel/debug/dma_buf/bufinfo",
        "00008192\t00000002\t00080007\t00000002\tvvram\t00000077\tframe\n\
         \tAttached Devices:\n\t0000:02:00.0\nTotal 1 devices attached\n\n",
    );
    let (_, ls) = tree.json(&["ls"]);
    assert_eq!(ls["buffers"].as_array().unwrap().len(), 1, "{ls:#}");
    let buffer = &ls["buffers"][0];
    assert_eq!(buffer["device"], "0000:00:1a.0");
    assert_eq!(buffer["placement"], "system");
    assert_eq!(buffer["importers"].as_array().unwrap().len(), 1);
    assert_eq!(buffer["importers"][0]["reason"], "other-importer");
    assert_eq!(ls["counters"].as_array().unwrap().len(), 1);
    let (_, text, _) = tree.run(&["ls"]);
    for part in [
        "in system (may live in either)",
        "kept by importers alone",
        "exported by render (812)",
        "system: other-importer  4 hops  dynamic",
        "moves  -  10",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn reports_do_not_tell_whose_machine_it_is() {
    let tree = laptop("report", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    tree.write("proc/sys/kernel/osrelease", "7.3.0-lappy-ann\n");
    let nic = Function {
        names: vec![("net", "enx525400123456")],
        ..Function::endpoint(0x02_0000, (0x8086, 0x15f3), "igc")
    };
    tree.add("pci0000:00", "0000:00:19.0", &nic);
    tree.write("proc/812/comm", "ann\n");
    tree.write("proc/812/fd/9", "");
    tree.write(
        "proc/812/fdinfo/9",
        "ino:\t77\nsize:\t8192\nexp_name:\tamdgpu\nname:\t/home/bob/model:/srv/people/eve/x\n",
    );
    let (status, text, _) = tree.run(&["report", "renderD128", "enx525400123456"]);
    let (other, json) = tree.json(&["report", "renderD128", "enx525400123456"]);
    assert_eq!((status, other), (0, 0));
    let (_, why) = text.split_once("== why ==\n").expect(&text);
    for part in [
        "Memory of 0000:01:00.0 (renderD128, card0), accessed by 0000:00:19.0 (enx[number])",
        "<- accesses it  igc  enx[number]",
        "AMD since Zen",
    ] {
        assert!(why.contains(part), "{part} is not in\n{why}");
    }
    assert_eq!(json["why"]["client"]["address"], "0000:00:19.0");
    assert_eq!(json["why"]["answer"]["path"], "host-bridge");
    for report in [&text, &json.to_string()] {
        for secret in ["lappy", "ann", "bob", "eve", "people", "enx525400123456"] {
            let mut words = report.split(|c: char| !c.is_alphanumeric());
            assert!(
                !words.any(|word| word == secret),
                "{secret} is in\n{report}"
            );
        }
        for part in [
            "0000:01:00.0",
            "amdgpu",
            "1022:1630",
            "resized",
            "enx[number]",
        ] {
            assert!(report.contains(part), "{part} is not in\n{report}");
        }
    }
    assert!(
        text.contains("HOST4") && json.to_string().contains("host-bridge"),
        "{text}"
    );
    assert!(
        text.contains("7.3.0-[host]-[user]") && text.contains("[home]/model"),
        "{text}"
    );
    // Without two devices there is no answer for them.
    let (status, text, _) = tree.run(&["report"]);
    assert!(status == 0 && !text.contains("== why =="), "{text}");
    assert!(tree.json(&["report"]).1["why"].is_null());
    let (status, text, error) = tree.run(&["report", "renderD128", "nope"]);
    assert_eq!((status, &*text), (2, ""), "{error}");
}

#[test]
fn nothing_to_look_at() {
    let tree = Tree::new("nothing");
    for command in [
        &["topo"][..],
        &["why", "renderD128", "mlx5_0"],
        &["doctor"],
        &["report"],
    ] {
        let (status, text, error) = tree.run(command);
        assert_eq!((status, &*text), (3, ""), "{command:?}");
        assert!(error.contains("there are no PCI devices in"), "{error}");
    }
    let (status, text, error) = tree.run(&["ls"]);
    assert_eq!(status, 3, "{text}");
    assert!(
        error.contains("neither debugfs nor a process in /proc can be read"),
        "{error}"
    );
    let (status, _, error) = tree.run(&["watch"]);
    assert_eq!(status, 3, "{error}");
    assert!(
        error.contains("--sysfs shows a copy, which has no live events"),
        "{error}"
    );
    // A machine with bridges alone has no device that accesses memory.
    tree.add(
        "pci0000:00",
        "0000:00:00.0",
        &Function::host((0x8086, 0x1237)),
    );
    let (status, _, error) = tree.run(&["topo"]);
    assert_eq!(status, 3, "{error}");
}

#[test]
fn without_a_gpu() {
    let tree = Tree::new("headless");
    tree.kernel("7.3.0", "CONFIG_PCI_P2PDMA=y\n");
    let port = "0000:00:01.0";
    tree.add("pci0000:00", port, &Function::port(4, None));
    let nic = Function::nic("mlx5_0", "ens1np0");
    tree.add(&format!("pci0000:00/{port}"), "0000:01:00.0", &nic);
    tree.add("pci0000:00", DRIVE, &Function::nvme("nvme0"));
    let note = "there is no GPU or accelerator; see p2p doctor";
    let (status, text, _) = tree.run(&["topo"]);
    assert_eq!(status, 0, "{text}");
    assert!(
        text.contains(&format!("note: {note}")) && text.contains("mlx5_0"),
        "{text}"
    );
    let (status, text, error) = tree.run(&["ls"]);
    assert_eq!(status, 3, "{text}");
    assert!(
        text.contains(&format!("note: {note}")) && text.contains("no buffers"),
        "{text}"
    );
    // Nothing can be mounted on a copy.
    let debugfs = "note: /sys/kernel/debug/dma_buf/bufinfo: the copy does not have it\n";
    assert!(text.contains(debugfs), "{text}");
    assert!(
        error.contains("neither debugfs nor a process in /proc can be read"),
        "{error}"
    );
    let (status, text, _) = tree.run(&["doctor"]);
    assert_eq!(status, 1, "{text}");
    for part in [
        "there is no GPU or accelerator: neither a display nor a DRM device; install one, or \
         export a BAR of another PCI device with bar_export",
        "mount -t debugfs debugfs /sys/kernel/debug: else p2p ls does not see all buffers",
        "mount -t tracefs tracefs /sys/kernel/tracing: else p2p watch sees no events",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // What the kernel does not have cannot be mounted.
    tree.write("proc/filesystems", "nodev\tsysfs\nnodev\tdebugfs\n");
    let (_, text, _) = tree.run(&["doctor"]);
    for part in [
        "mount -t debugfs debugfs /sys/kernel/debug",
        "boot a kernel with CONFIG_FTRACE: else p2p watch sees no events",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    tree.write("sys/kernel/tracing/README", "");
    let no_events = "it can be read; no driver that reports transfers is loaded";
    let (_, text, _) = tree.run(&["doctor"]);
    assert!(text.contains(no_events), "{text}");
    tree.write("sys/kernel/tracing/events/drm_peer/enable", "0\n");
    let (_, text, _) = tree.run(&["doctor"]);
    assert!(!text.contains(no_events), "{text}");
    // With a GPU there is no such note.
    let tree = laptop("headed", "AuthenticAMD", 25, "CONFIG_PCI_P2PDMA=y\n");
    for command in ["topo", "ls", "doctor"] {
        let (_, text, _) = tree.run(&[command]);
        assert!(!text.contains("there is no GPU"), "{text}");
    }
}

#[test]
fn command_lines() {
    let tree = Tree::new("lines");
    for wrong in [
        &["topo", "x"][..],
        &["why", "a"],
        &["report", "a"],
        &["unknown"],
        &[],
        &["watch", "--count", "x"],
    ] {
        assert_eq!(tree.run(wrong).0, 2, "{wrong:?}");
    }
    let (status, text, _) = tree.run(&["--help"]);
    assert!(status == 0 && text.contains("Exit status:"), "{text}");
}
