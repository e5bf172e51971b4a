// SPDX-License-Identifier: GPL-2.0

//! Makes trees of sysfs and procfs, of machines that do not exist.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// SrcValid, ReqRedir, CmpltRedir, UpstreamFwd: what an IOMMU makes the kernel turn on.
pub const REDIRECTS: u16 = 0x1d;
pub const NVIDIA_A100: (u16, u16) = (0x10de, 0x20b0);
pub const CONNECTX: (u16, u16) = (0x15b3, 0x1021);
pub const DRIVE: (u16, u16) = (0x144d, 0xa80a);
pub const PORT: (u16, u16) = (0x1000, 0xc030);
const CONFIG_SIZE: usize = 4096;

/// The properties of a PCI function.
#[derive(Clone, Debug)]
pub struct Function {
    pub id: (u16, u16),
    pub class: u32,
    /// Type of the Express capability.
    pub port: u8,
    /// The ACS control register.
    pub acs: Option<u16>,
    pub is_master: bool,
    pub driver: &'static str,
    pub group: &'static str,
    pub domain: &'static str,
    pub numa: i32,
    /// Size of BAR 0.
    pub bar: u64,
    pub is_resizable: bool,
    /// Class and name of the device that its driver made.
    pub names: Vec<(&'static str, &'static str)>,
    /// How much of the configuration space can be read.
    pub readable: usize,
}

impl Function {
    pub fn endpoint(class: u32, id: (u16, u16), driver: &'static str) -> Self {
        Self {
            id,
            class,
            port: 0,
            acs: None,
            is_master: true,
            driver,
            group: "",
            domain: "",
            numa: -1,
            bar: 16 << 20,
            is_resizable: false,
            names: Vec::new(),
            readable: CONFIG_SIZE,
        }
    }

    pub fn port(kind: u8, acs: Option<u16>) -> Self {
        Self {
            port: kind,
            acs,
            ..Self::endpoint(0x06_0400, PORT, "pcieport")
        }
    }

    pub fn gpu(node: &'static str) -> Self {
        Self {
            bar: 64 << 30,
            names: vec![("drm", node)],
            ..Self::endpoint(0x03_0200, NVIDIA_A100, "nouveau")
        }
    }

    pub fn nic(name: &'static str, netdev: &'static str) -> Self {
        Self {
            names: vec![("net", netdev), ("infiniband", name)],
            ..Self::endpoint(0x02_0000, CONNECTX, "mlx5_core")
        }
    }

    pub fn nvme(name: &'static str) -> Self {
        Self {
            names: vec![("nvme", name)],
            ..Self::endpoint(0x01_0802, DRIVE, "nvme")
        }
    }

    pub fn host(id: (u16, u16)) -> Self {
        Self {
            port: 4,
            ..Self::endpoint(0x06_0000, id, "")
        }
    }

    pub fn in_group(self, group: &'static str, domain: &'static str) -> Self {
        Self {
            group,
            domain,
            ..self
        }
    }

    fn config(&self) -> Vec<u8> {
        let mut bytes = vec![0; CONFIG_SIZE];
        bytes[..2].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.id.1.to_le_bytes());
        bytes[4] = if self.is_master { 6 } else { 2 };
        bytes[6] = 0x10;
        bytes[0x34] = 0x40;
        // Power management comes first.
        bytes[0x40..0x42].copy_from_slice(&[1, 0x60]);
        bytes[0x60..0x63].copy_from_slice(&[0x10, 0, self.port << 4 | 2]);
        let mut at = 0x100;
        let mut add = |id: u16, control: u16| {
            let next = at + 0x40;
            let head = u32::from(id) | 1 << 16 | (next as u32) << 20;
            bytes[at..at + 4].copy_from_slice(&head.to_le_bytes());
            bytes[at + 6..at + 8].copy_from_slice(&control.to_le_bytes());
            at = next;
        };
        add(0x0001, 0);
        if self.is_resizable {
            add(0x0015, 0);
        }
        if let Some(control) = self.acs {
            add(0x000d, control);
        }
        bytes.truncate(self.readable);
        bytes
    }
}

/// A tree, which is made anew for each test.
#[derive(Debug)]
pub struct Tree(PathBuf);

impl Tree {
    pub fn new(name: &str) -> Self {
        let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&at);
        fs::create_dir_all(at.join("sys/bus/pci/devices")).unwrap();
        Self(at)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// A link from one path to another one, as sysfs has them.
    fn link(&self, path: &str, target: &str) {
        let up = "../".repeat(path.matches('/').count());
        let at = self.0.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(format!("{up}{target}"), at).unwrap();
    }

    pub fn kernel(&self, release: &str, options: &str) {
        self.write("proc/sys/kernel/osrelease", format!("{release}\n"));
        self.write(&format!("boot/config-{release}"), options);
        self.write("proc/cmdline", "root=/dev/sda1 quiet iommu=pt\n");
    }

    pub fn cpu(&self, vendor: &str, family: u32, model: &str) {
        let text = format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: {model}\n"
        );
        self.write("proc/cpuinfo", text);
    }

    /// Adds a function below a host bridge and other functions: `pci0000:00/0000:00:01.0`.
    pub fn add(&self, above: &str, address: &str, function: &Function) {
        let at = format!("sys/devices/{above}/{address}");
        let number = |value: u32, digits: usize| format!("0x{value:0digits$x}\n");
        self.write(&format!("{at}/vendor"), number(function.id.0.into(), 4));
        self.write(&format!("{at}/device"), number(function.id.1.into(), 4));
        self.write(&format!("{at}/class"), number(function.class, 6));
        self.write(&format!("{at}/config"), function.config());
        self.write(&format!("{at}/numa_node"), format!("{}\n", function.numa));
        let end = (8u64 << 40) + function.bar - 1;
        let resource = format!("{:#018x} {end:#018x} {:#018x}\n", 8u64 << 40, 0x14220c);
        self.write(&format!("{at}/resource"), resource);
        self.link(&format!("sys/bus/pci/devices/{address}"), &at);
        if !function.driver.is_empty() {
            let driver = format!("sys/bus/pci/drivers/{}", function.driver);
            fs::create_dir_all(self.0.join(&driver)).unwrap();
            self.link(&format!("{at}/driver"), &driver);
        }
        if !function.group.is_empty() {
            let group = format!("sys/kernel/iommu_groups/{}", function.group);
            self.write(&format!("{group}/type"), format!("{}\n", function.domain));
            self.link(&format!("{at}/iommu_group"), &group);
        }
        for (class, name) in &function.names {
            let member = format!("{at}/{class}/{name}");
            fs::create_dir_all(self.0.join(&member)).unwrap();
            self.link(&format!("sys/class/{class}/{name}"), &member);
        }
    }

    /// Runs the program; returns its exit status and what it prints.
    pub fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_p2p"))
            .arg("--sysfs")
            .arg(&self.0)
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let status = output.status.code().unwrap();
        (status, text(&output.stdout), text(&output.stderr))
    }

    /// Runs the program; returns its exit status and the JSON that it prints.
    pub fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let (status, text, _) = self.run(&[arguments, &["--json"]].concat());
        (status, serde_json::from_str(&text).expect(&text))
    }

    /// The pair of `topo --json` for a provider and a client.
    pub fn pair(&self, provider: &str, client: &str) -> Value {
        let (status, topo) = self.json(&["topo", "--all"]);
        assert_eq!(status, 0);
        let pairs = topo["pairs"].as_array().unwrap();
        let found = pairs
            .iter()
            .find(|pair| pair["provider"] == provider && pair["client"] == client);
        found
            .unwrap_or_else(|| panic!("{provider} and {client}: {topo:#}"))
            .clone()
    }
}
