// SPDX-License-Identifier: GPL-2.0

//! /sys/kernel/debug/dma_buf/bufinfo: the dma-bufs of all exporters.

/// One dma-buf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// In bytes.
    pub size: u64,
    /// The name of the exporting driver.
    pub exporter: String,
    /// Its inode.
    pub inode: u64,
    /// Its name.
    pub name: String,
    /// Names of the devices that are attached.
    pub attached: Vec<String>,
}

/// Reads the file.
pub fn parse(text: &str) -> Vec<Buffer> {
    let mut buffers = Vec::<Buffer>::new();
    let mut is_attached = false;
    for line in text.lines() {
        if let Some(buffer) = head(line) {
            buffers.push(buffer);
            is_attached = false;
        } else if line.trim() == "Attached Devices:" {
            is_attached = true;
        } else if line.starts_with("Total ") {
            is_attached = false;
        } else if let (true, Some(buffer), Some(device)) =
            (is_attached, buffers.last_mut(), line.strip_prefix('\t'))
        {
            buffer.attached.push(device.trim().to_string());
        }
    }
    buffers
}

/// The line of a buffer: size, flags, mode, count, exporter, inode and name.
fn head(line: &str) -> Option<Buffer> {
    let mut words = line.split('\t').map(str::trim);
    let size = words.next()?.parse().ok()?;
    let mut rest = words.skip(3);
    let (exporter, inode) = (rest.next()?.to_string(), rest.next()?.parse().ok()?);
    let name = rest
        .next()
        .filter(|name| *name != "<none>")
        .unwrap_or_default();
    Some(Buffer {
        size,
        exporter,
        inode,
        name: name.to_string(),
        attached: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings() {
        let text = "\nDma-buf Objects:\n\
                    size    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n\
                    00008192\t00000002\t00080007\t00000002\tvvram\t00000012\tframe\n\
                    \twrite fence:edu timeline signalled\n\
                    \tAttached Devices:\n\
                    \t0000:04:00.0\n\
                    \t0000:05:00.0\n\
                    Total 2 devices attached\n\n\
                    00004096\t00000002\t00080007\t00000001\tsystem\t00000013\t<none>\n\
                    \tAttached Devices:\n\
                    Total 0 devices attached\n\n\n\
                    Total 2 objects, 12288 bytes\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].size, found[0].inode), (8192, 12));
        assert_eq!((&*found[0].exporter, &*found[0].name), ("vvram", "frame"));
        assert_eq!(found[0].attached, ["0000:04:00.0", "0000:05:00.0"]);
        assert_eq!((&*found[1].exporter, &*found[1].name), ("system", ""));
        assert!(found[1].attached.is_empty());
    }
}
