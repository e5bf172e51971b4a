// SPDX-License-Identifier: GPL-2.0

//! A server: two switches below a Xeon, each with a GPU, a NIC and a drive, and one with ACS on.

mod common;

use common::{Function, Tree, REDIRECTS};

const OPTIONS: &str = "CONFIG_PCI_P2PDMA=y\nCONFIG_ZONE_DEVICE=y\nCONFIG_DMA_SHARED_BUFFER=y\n\
                       CONFIG_HMM_MIRROR=y\nCONFIG_DEVICE_PRIVATE=y\n\
                       CONFIG_INFINIBAND_ON_DEMAND_PAGING=y\n";
const GPU: &str = "0000:03:00.0";
const NIC: &str = "0000:04:00.0";
const DRIVE: &str = "0000:05:00.0";
const OTHER_GPU: &str = "0000:43:00.0";
const OTHER_NIC: &str = "0000:44:00.0";
const FAR_GPU: &str = "0000:83:00.0";

/// A switch with three devices: the ports of the first one have no bits of ACS on.
fn switch(tree: &Tree, host: &str, bus: u8, acs: Option<u16>, ends: [Function; 3]) {
    let at = |number: u8, slot: u8| format!("0000:{:02x}:{slot:02x}.0", bus + number);
    let root = format!("0000:{bus:02x}:01.0");
    tree.add(host, &root, &Function::port(4, Some(0)));
    let upstream = format!("{host}/{root}");
    tree.add(&upstream, &at(1, 0), &Function::port(5, None));
    let ports = format!("{upstream}/{}", at(1, 0));
    for (number, end) in (0..).zip(ends) {
        tree.add(&ports, &at(2, number), &Function::port(6, acs));
        tree.add(
            &format!("{ports}/{}", at(2, number)),
            &at(3 + number, 0),
            &end,
        );
    }
}

/// The whole machine. Host bridges of this ID are on the list, of 09a3 they are not.
fn server(name: &str, host: u16, release: &str) -> Tree {
    let tree = Tree::new(name);
    tree.kernel(release, OPTIONS);
    tree.cpu(
        "GenuineIntel",
        6,
        "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz",
    );
    for bus in ["00", "40", "80"] {
        let address = format!("0000:{bus}:00.0");
        tree.add(
            &format!("pci0000:{bus}"),
            &address,
            &Function::host((0x8086, host)),
        );
    }
    switch(
        &tree,
        "pci0000:00",
        0x00,
        Some(0),
        [
            Function::gpu("renderD128").in_group("10", "identity"),
            Function::nic("mlx5_0", "ens1np0").in_group("10", "identity"),
            Function::nvme("nvme0").in_group("10", "identity"),
        ],
    );
    switch(
        &tree,
        "pci0000:40",
        0x40,
        Some(REDIRECTS),
        [
            Function::gpu("renderD129").in_group("20", "identity"),
            Function::nic("mlx5_1", "ens2np0").in_group("21", "identity"),
            Function::nvme("nvme1").in_group("22", "identity"),
        ],
    );
    // A GPU right below a root port of a third bridge, which is conventional PCI in between.
    tree.add(
        "pci0000:80",
        "0000:80:01.0",
        &Function::port(4, Some(REDIRECTS)),
    );
    tree.add(
        "pci0000:80/0000:80:01.0",
        "0000:81:00.0",
        &Function::port(7, None),
    );
    tree.add(
        "pci0000:80/0000:80:01.0/0000:81:00.0",
        FAR_GPU,
        &Function::gpu("renderD130"),
    );
    tree
}

#[test]
fn below_one_switch_it_is_the_bus() {
    let tree = server("bus", 0x09a2, "7.3.4");
    for (a, b) in [(GPU, NIC), (NIC, GPU), (GPU, DRIVE), (DRIVE, NIC)] {
        let pair = tree.pair(a, b);
        assert_eq!(pair["path"], "bus", "{pair:#}");
        assert_eq!(pair["distance"], 4);
        assert_eq!(pair["source"], "sysfs");
        assert_eq!(pair["sysfs"]["bridge"], "0000:01:00.0");
        assert_eq!(pair["sysfs"]["redirects"].as_array().unwrap().len(), 0);
        assert!(pair["sysfs"]["host"].is_null());
    }
}

#[test]
fn acs_redirects_to_a_host_that_forwards() {
    let tree = server("acs", 0x09a2, "7.3.4");
    let pair = tree.pair(OTHER_GPU, OTHER_NIC);
    assert_eq!(pair["path"], "host-bridge", "{pair:#}");
    assert_eq!(pair["distance"], 4);
    let redirects = pair["sysfs"]["redirects"].as_array().unwrap();
    assert_eq!(redirects[0]["port"], "0000:42:00.0");
    assert_eq!(redirects[1]["port"], "0000:42:01.0");
    assert_eq!(redirects[0]["acs"], 0x0c);
    assert_eq!(pair["sysfs"]["host"]["forwards"], "listed");
    assert_eq!(pair["sysfs"]["host"]["id"], "8086:09a2");
    // From the other end the other port comes first.
    let back = tree.pair(OTHER_NIC, OTHER_GPU);
    assert_eq!(back["sysfs"]["redirects"][0]["port"], "0000:42:01.0");
}

#[test]
fn acs_redirects_to_a_host_that_does_not_forward() {
    let tree = server("refused", 0x09a3, "7.3.4");
    let pair = tree.pair(OTHER_GPU, OTHER_NIC);
    assert_eq!(
        (&pair["path"], &pair["distance"]),
        (&"refused".into(), &(-1).into()),
        "{pair:#}"
    );
    assert_eq!(tree.pair(GPU, NIC)["path"], "bus");
    let (status, text, _) = tree.run(&["why", "renderD129", "mlx5_1"]);
    assert_eq!(status, 1, "{text}");
    for part in [
        "not peer to peer (no-route)",
        "family 6) is not known to forward",
        "`- 0000:41:00.0  upstream port  [no ACS]",
        "|- 0000:42:00.0  downstream port  [ACS SrcValid ReqRedir CmpltRedir UpstreamFwd: redirects]",
        "<- memory  nouveau  renderD129",
        "<- accesses it  mlx5_core  mlx5_1, ens2np0",
        "both are below 0000:41:00.0",
        "0000:42:01.0 sends requests of peers to the host: ReqRedir and CmpltRedir are on",
        "the host bridge 8086:09a3 is not on the kernel's list",
        "to permit it at all, boot with pci=disable_acs_redir=0000:42:00.0;0000:42:01.0",
        "in /etc/default/grub write \\; for each ; (GRUB ends a command there), then run \
         update-grub\n",
        "joins their IOMMU groups 20 and 21",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // One port has no semicolon.
    let (_, text, _) = tree.run(&["why", "0000:80:01.0", "renderD130"]);
    assert!(
        text.contains("disable_acs_redir=0000:80:01.0\n") && !text.contains("grub"),
        "{text}"
    );
}

#[test]
fn between_switches_it_is_the_host() {
    let tree = server("two", 0x09a2, "7.3.4");
    let pair = tree.pair(GPU, OTHER_NIC);
    assert_eq!(pair["path"], "host-bridge", "{pair:#}");
    assert_eq!(pair["distance"], 8);
    assert!(pair["sysfs"]["bridge"].is_null());
    // Redirection is only in the way of a shorter path.
    assert_eq!(pair["sysfs"]["redirects"].as_array().unwrap().len(), 0);
    let (status, text, _) = tree.run(&["why", GPU, "ens2np0"]);
    assert_eq!(status, 0, "{text}");
    assert!(
        text.contains("host bridge pci0000:00  0000:00:00.0 8086:09a2"),
        "{text}"
    );
    assert!(text.contains("host bridge pci0000:40"), "{text}");
    assert!(text.contains("through the host bridge, 8 hops"), "{text}");
}

#[test]
fn some_bridges_forward_for_their_own_only() {
    let tree = server("own", 0x2f00, "7.3.4");
    assert_eq!(tree.pair(GPU, OTHER_NIC)["path"], "refused");
    assert_eq!(tree.pair(OTHER_GPU, OTHER_NIC)["path"], "host-bridge");
}

#[test]
fn a_kernel_with_another_list_is_not_known() {
    let tree = server("older", 0x0b25, "6.1.0-44-amd64");
    let pair = tree.pair(GPU, OTHER_NIC);
    assert_eq!(pair["path"], "unknown", "{pair:#}");
    assert_eq!(
        pair["sysfs"]["maybe"],
        serde_json::json!(["host-bridge", "refused"])
    );
    assert!(pair["distance"].is_null());
    assert_eq!(tree.pair(GPU, NIC)["path"], "bus");
    let (status, text, _) = tree.run(&["why", "renderD128", "mlx5_1"]);
    assert_eq!(status, 4, "{text}");
    for part in [
        "  - it is not known whether Linux 6.1.0-44-amd64 lists 8086:0b25\n",
        "What to do:\n  - compare 8086:0b25 with pci_p2pdma_whitelist[] in drivers/pci/p2pdma.c of \
         the source of this kernel\n",
        "  - boot Linux 7.3, the kernel version whose list of host bridges",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // The driver of this GPU does not report what the kernel decides.
    assert!(!text.contains("attach a buffer"), "{text}");
    // Root would not see more.
    let (_, text, _) = tree.run(&["doctor"]);
    let nic = text.lines().find(|line| line.contains("RDMA mlx5_0"));
    assert!(
        nic.is_some_and(|line| line.starts_with("ok") && line.contains("Linux 5.12 and later")),
        "{text}"
    );
    let open = "it is not known whether the host forwards: ";
    let line = text.lines().find(|line| line.contains(open));
    assert!(
        line.is_some_and(|line| line.starts_with("unknown") && line.contains(" more: see p2p why")),
        "{text}"
    );
    assert!(!text.contains("cannot be judged"), "{text}");
    let doubtful = "3 ports send requests of peers to the host bridge, and it is not known";
    let line = text.lines().find(|line| line.contains(doubtful));
    assert!(
        line.is_some_and(|line| line.starts_with("unknown")),
        "{text}"
    );
    // Nor is a kernel whose version cannot be read.
    tree.write("proc/sys/kernel/osrelease", "");
    let (_, text, _) = tree.run(&["why", "renderD128", "mlx5_1"]);
    assert!(
        text.contains("  - it is not known whether this kernel lists 8086:0b25\n"),
        "{text}"
    );
}

#[test]
fn an_older_kernel_is_judged_by_what_it_lists() {
    for (host, release, path) in [
        (0x09a2, "5.4.0", "refused"),
        (0x09a2, "5.15.0-91-generic", "unknown"),
        (0x09a2, "5.18.0", "host-bridge"),
        (0x09a2, "6.1.0-44-amd64", "host-bridge"),
        (0x2030, "5.10.0", "host-bridge"),
        (0x09a3, "5.10.0", "refused"),
    ] {
        let tree = server("lists", host, release);
        let pair = tree.pair(GPU, OTHER_NIC);
        assert_eq!(pair["path"], path, "{host:04x} in {release}: {pair:#}");
    }
    let tree = server("lists", 0x09a2, "5.4.0");
    let (status, text, _) = tree.run(&["why", "renderD128", "mlx5_1"]);
    assert_eq!(status, 1, "{text}");
    let advice = "  - boot Linux 5.18 or newer, which has it forward. The kernel of a distribution";
    assert!(text.contains(advice), "{text}");
    // No kernel that is known lists the other bridge.
    let tree = server("lists", 0x09a3, "5.4.0");
    let (_, text, _) = tree.run(&["why", "renderD128", "mlx5_1"]);
    assert!(!text.contains("boot Linux"), "{text}");
}

#[test]
fn an_older_kernel_may_not_look_up_root_ports() {
    for (release, path) in [
        ("5.4.0", "refused"),
        ("5.10.0", "unknown"),
        ("5.19.0", "host-bridge"),
    ] {
        let tree = Tree::new("ports");
        tree.kernel(release, OPTIONS);
        tree.cpu("GenuineIntel", 6, "");
        for slot in ["01", "02"] {
            let port = Function {
                id: (0x8086, 0x2031),
                ..Function::port(4, Some(0))
            };
            tree.add("pci0000:16", &format!("0000:16:{slot}.0"), &port);
        }
        tree.add(
            "pci0000:16/0000:16:01.0",
            "0000:17:00.0",
            &Function::gpu("renderD128"),
        );
        tree.add(
            "pci0000:16/0000:16:02.0",
            "0000:18:00.0",
            &Function::nvme("nvme0"),
        );
        let pair = tree.pair("0000:17:00.0", "0000:18:00.0");
        // 8086:2031 is not in the list of Linux 5.4 either.
        assert_eq!(pair["path"], path, "{release}: {pair:#}");
        let (_, text, _) = tree.run(&["why", "renderD128", "nvme0"]);
        let doubt = "goes by a root port that is not 00.0, as 0000:16:01.0 is";
        assert_eq!(text.contains(doubt), path == "unknown", "{text}");
    }
}

#[test]
fn advice_is_about_what_the_driver_reports() {
    let reports = |tree: &Tree, driver: &'static str| {
        let gpu = Function {
            driver,
            ..Function::gpu("renderD131")
        };
        tree.add("pci0000:00", "0000:00:1a.0", &gpu);
        tree.run(&["why", "renderD131", "mlx5_1"]).1
    };
    for (driver, is_told) in [("vvram", true), ("xe", false)] {
        let tree = server(&format!("older-{driver}"), 0x0b25, "6.1.0-44-amd64");
        let text = reports(&tree, driver);
        let advice = "  - attach a buffer once: p2p ls then shows what the kernel decided\n";
        assert_eq!(text.contains(advice), is_told, "{text}");
        let tree = server(&format!("newer-{driver}"), 0x09a2, "7.3.4");
        let text = reports(&tree, driver);
        let same = "nothing. If a transfer is not peer to peer all the same, p2p ls and p2p watch";
        assert_eq!(text.contains(same), is_told, "{text}");
        let untold = format!("nothing. The driver {driver} does not report paths\n");
        assert_eq!(text.contains(&untold), !is_told, "{text}");
    }
}

#[test]
fn a_processor_that_cannot_be_read_is_not_known() {
    let tree = server("processor", 0x09a3, "7.3.4");
    tree.write("proc/cpuinfo", "");
    let (status, text, _) = tree.run(&["why", "renderD128", "mlx5_1"]);
    assert_eq!(status, 4, "{text}");
    assert!(
        text.contains(
            "  - the processor is not known\nWhat to do:\n  - make /proc/cpuinfo readable"
        ),
        "{text}"
    );
    for other in ["attach a buffer", "compare", "boot Linux"] {
        assert!(!text.contains(other), "{text}");
    }
    // If ports redirect besides, the direct way is advised as well.
    let (status, text, _) = tree.run(&["why", "renderD129", "mlx5_1"]);
    assert_eq!(status, 4, "{text}");
    assert!(
        text.contains("for the direct way, boot with") && text.contains("make /proc/cpuinfo"),
        "{text}"
    );
}

#[test]
fn ports_that_cannot_be_read_are_not_known() {
    let tree = server("hidden", 0x09a2, "7.3.4");
    let hidden = Function {
        readable: 64,
        ..Function::port(6, Some(0))
    };
    tree.add(
        "pci0000:00/0000:00:01.0/0000:01:00.0",
        "0000:02:03.0",
        &hidden,
    );
    tree.add(
        "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:03.0",
        "0000:06:00.0",
        &Function::nic("mlx5_2", "ens3np0"),
    );
    let pair = tree.pair(GPU, "0000:06:00.0");
    assert_eq!(pair["path"], "unknown", "{pair:#}");
    assert_eq!(
        pair["sysfs"]["maybe"],
        serde_json::json!(["bus", "host-bridge"])
    );
    assert_eq!(pair["sysfs"]["unseen"], serde_json::json!(["0000:02:03.0"]));
    // A port that redirects decides, whatever the other one does.
    let known = tree.pair(OTHER_GPU, OTHER_NIC);
    assert_eq!(known["path"], "host-bridge");
    let (_, text, _) = tree.run(&["topo"]);
    assert!(text.contains("BUS/HOST?"), "{text}");
    let advice = "run it as root outside a container, or make the copy that way";
    assert!(
        text.contains(&format!("cannot be read: {advice}\n")),
        "{text}"
    );
    let (_, text, _) = tree.run(&["why", GPU, "0000:06:00.0"]);
    assert!(
        text.contains(&format!("  - to see the ACS bits, {advice}\n")),
        "{text}"
    );
    let (_, text, _) = tree.run(&["doctor"]);
    assert!(
        text.contains(&format!("the ACS bits of 1 port cannot be read: {advice}")),
        "{text}"
    );
}

#[test]
fn the_matrix() {
    let tree = server("matrix", 0x09a2, "7.3.4");
    let (status, text, _) = tree.run(&["topo"]);
    assert_eq!(status, 0);
    let row = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace()
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    let columns = row("  ".trim_start());
    assert_eq!(columns[0], "Row:");
    let head = text.lines().nth(2).unwrap();
    let names: Vec<_> = head.split_whitespace().take(7).collect();
    let want = [
        "renderD128",
        "renderD129",
        "renderD130",
        "mlx5_0",
        "mlx5_1",
        "nvme0",
        "nvme1",
    ];
    assert_eq!(names, want);
    let cells = [
        "X",
        "HOST8",
        "HOST7",
        "BUS4",
        "HOST8",
        "BUS4",
        "HOST8",
        "-",
        "10",
        "(identity)",
    ];
    assert_eq!(row("renderD128")[1..], cells);
    assert_eq!(row("mlx5_1")[2], "HOST4");
    assert!(
        text.contains("0000:44:00.0  nic   15b3:1021  mlx5_core  ens2np0"),
        "{text}"
    );
    // Its IOMMU is on, and translates nothing.
    assert!(text.contains("by IOVA if an IOMMU translates"), "{text}");
}

#[test]
fn bridges_are_in_the_whole_matrix_alone() {
    let tree = server("all", 0x09a2, "7.3.4");
    let devices = |arguments: &[&str]| {
        let (_, topo) = tree.json(arguments);
        topo["devices"].as_array().unwrap().len()
    };
    assert_eq!(devices(&["topo"]), 7);
    assert_eq!(devices(&["topo", "--all"]), 7 + 3 + 5 + 5 + 2);
    // A port with ACS is a part of the path to the devices below it.
    assert_eq!(tree.pair("0000:80:01.0", FAR_GPU)["path"], "host-bridge");
    assert_eq!(tree.pair("0000:00:01.0", GPU)["path"], "bus");
}

#[test]
fn doctor() {
    let tree = server("doctor", 0x09a3, "7.3.4");
    let (status, text, _) = tree.run(&["doctor"]);
    assert_eq!(status, 1, "{text}");
    let line = |state: &str, part: &str| {
        let found = text
            .lines()
            .any(|line| line.starts_with(state) && line.contains(part));
        assert!(found, "no line {state} {part} in\n{text}");
    };
    line("ok", "CONFIG_PCI_P2PDMA=y");
    line("ok", "iommu=pt");
    line(
        "ok",
        "domains of type identity: devices use physical addresses",
    );
    line(
        "to do",
        "0000:42:00.0, 0000:42:01.0, 0000:42:02.0 send requests of peers to the host, which does \
         not forward them",
    );
    line("to do", r"0000:42:02.0; in /etc/default/grub write \; for");
    line("to do", "renderD128 and renderD129");
    line("ok", "its largest BAR has 64 GiB");
    line("ok", "mlx5_core registers dma-bufs");
    line("to do", "mount -t tracefs tracefs");
    assert!(
        !text.contains("quiet") && !text.contains("MOVE_NOTIFY"),
        "{text}"
    );
    line("ok", "3 pairs of devices are peer to peer");
}

#[test]
fn an_rdma_driver_is_judged_by_the_version_of_the_kernel() {
    for (release, state, text) in [
        (
            "5.10.0",
            "to do",
            "in Linux 5.12 and later: boot a newer kernel",
        ),
        (
            "5.15.0",
            "ok",
            "mlx5_core registers dma-bufs in Linux 5.12 and later",
        ),
        (
            "6.12.0",
            "ok",
            "mlx5_core registers dma-bufs in Linux 5.12 and later",
        ),
        ("7.3.4", "ok", "mlx5_core registers dma-bufs"),
    ] {
        let tree = server("rdma", 0x09a2, release);
        assert_eq!(finding(&tree, text).0, state, "Linux {release}");
    }
    for (driver, release, state, part) in [
        (
            "efa",
            "5.10.0",
            "to do",
            "efa registers dma-bufs in Linux 5.16",
        ),
        ("efa", "5.15.0", "unknown", "boot Linux 5.16 or newer"),
        ("efa", "5.16.0", "ok", "in Linux 5.16 and later"),
        ("ionic", "6.12.0", "unknown", "boot Linux 7.3 or newer"),
    ] {
        let tree = server("rdma-of", 0x09a2, release);
        let nic = Function {
            driver,
            ..Function::nic("rdma9", "eth9")
        };
        tree.add("pci0000:00", "0000:00:19.0", &nic);
        let (found, text) = finding(&tree, &format!("{driver} registers dma-bufs in"));
        assert!(text.contains(part), "{text}");
        assert_eq!(found, state, "{driver} in Linux {release}: {text}");
    }
}

/// The state and the text of a line of `p2p doctor` that has a text.
fn finding(tree: &Tree, part: &str) -> (String, String) {
    let (_, doctor) = tree.json(&["doctor"]);
    let checks = doctor["checks"].as_array().unwrap();
    let word = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap().to_string();
    let found = checks.iter().find(|it| word(it, "text").contains(part));
    let found = found.unwrap_or_else(|| panic!("{part}: {doctor:#}"));
    (word(found, "state"), word(found, "text"))
}

#[test]
fn redirection_to_a_host_that_forwards_needs_no_action() {
    let tree = server("detour", 0x09a2, "7.3.4");
    let want = "3 ports send requests of peers to the host bridge: slower, but peer to peer; see \
                p2p why";
    assert_eq!(
        finding(&tree, "requests of peers"),
        ("ok".into(), want.into())
    );
    let (_, text, _) = tree.run(&["doctor"]);
    assert!(!text.contains("no port redirects"), "{text}");
    // This host bridge forwards below itself alone, which is enough for a redirection.
    let tree = server("own-detour", 0x2f00, "7.3.4");
    assert_eq!(finding(&tree, "requests of peers").0, "ok");
    assert_eq!(finding(&tree, "no route: ").0, "to do");
}

#[test]
fn one_port_and_one_pair() {
    let tree = Tree::new("singular");
    tree.kernel("7.3.4", OPTIONS);
    tree.cpu("GenuineIntel", 6, "x");
    let port = "0000:00:01.0";
    tree.add("pci0000:00", port, &Function::port(4, Some(REDIRECTS)));
    let below = format!("pci0000:00/{port}");
    tree.add(&below, "0000:01:00.0", &Function::gpu("renderD128"));
    tree.add(&below, "0000:01:00.1", &Function::nvme("nvme0"));
    let (state, text) = finding(&tree, "requests of peers");
    assert_eq!(state, "to do", "{text}");
    let want = "0000:00:01.0 sends requests of peers to the host, which does not forward them; if \
                no guest has one of the devices, boot with pci=disable_acs_redir=0000:00:01.0";
    assert_eq!(text, want);
    tree.cpu("AuthenticAMD", 25, "x");
    assert!(finding(&tree, "1 port sends").1.contains("slower"));
    assert_eq!(
        finding(&tree, "of devices").1,
        "1 pair of devices is peer to peer"
    );
    // What cannot be read is counted in the same way.
    let hidden = Function {
        readable: 64,
        ..Function::port(4, None)
    };
    let tree = Tree::new("singular-hidden");
    tree.kernel("7.3.4", OPTIONS);
    tree.cpu("GenuineIntel", 6, "x");
    tree.add("pci0000:00", port, &hidden);
    tree.add(&below, "0000:01:00.0", &Function::gpu("renderD128"));
    tree.add(&below, "0000:01:00.1", &Function::nvme("nvme0"));
    let (_, text) = finding(&tree, "cannot be judged");
    assert!(text.starts_with("1 pair cannot"), "{text}");
}

#[test]
fn mlx5_needs_an_option_to_register() {
    let off = OPTIONS.replace("PAGING=y", "PAGING=n");
    let tree = server("paging", 0x09a2, "7.3.4");
    tree.kernel("7.3.4", &off);
    let option = "CONFIG_INFINIBAND_ON_DEMAND_PAGING";
    for text in [
        format!("boot a kernel with {option}: without it mlx5 refuses to register dma-bufs"),
        format!("mlx5_core does not register dma-bufs without {option}"),
    ] {
        assert_eq!(finding(&tree, &text).0, "to do");
    }
    // A NIC of another driver does not need it.
    let tree = Tree::new("other-nic");
    tree.kernel("7.3.4", &off);
    let nic = Function {
        driver: "ice",
        ..Function::nic("irdma0", "ens1")
    };
    tree.add("pci0000:00", "0000:00:01.0", &nic);
    assert_eq!(finding(&tree, "ice registers dma-bufs").0, "ok");
    let (_, text, _) = tree.run(&["doctor"]);
    assert!(!text.contains(option), "{text}");
}

#[test]
fn a_nic_without_its_rdma_module() {
    let tree = Tree::new("no-module");
    tree.kernel("7.3.4", OPTIONS);
    for (address, driver) in [("0000:00:01.0", "mlx5_core"), ("0000:00:02.0", "i40e")] {
        let nic = Function::endpoint(0x02_0000, (0x15b3, 0x1021), driver);
        tree.add("pci0000:00", address, &nic);
    }
    let want = "there is no RDMA device; if the NIC does RDMA, load the RDMA module of its \
                driver: mlx5_ib for mlx5_core, irdma for i40e";
    assert_eq!(
        finding(&tree, "no RDMA device"),
        ("unknown".into(), want.into())
    );
    // Other NICs do none.
    let tree = Tree::new("no-rdma");
    tree.kernel("7.3.4", OPTIONS);
    let nic = Function::endpoint(0x02_0000, (0x8086, 0x15f3), "igc");
    tree.add("pci0000:00", "0000:00:01.0", &nic);
    assert_eq!(
        finding(&tree, "no RDMA device"),
        ("ok".into(), "there is no RDMA device".into())
    );
}
