// SPDX-License-Identifier: GPL-2.0

//! Files of the kernel, of this machine or of a copied tree, and the reasons for failed reads.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How to see what the caller may not read. Root in a container may read no more than others.
const AS_ROOT: &str = "run it as root outside a container";
/// The same for a copy, which has what its maker could read.
const COPIED_AS_ROOT: &str = "run it as root outside a container, or make the copy that way";

/// The reason why a file was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blind {
    /// It is not there.
    Absent,
    /// The caller may not read it.
    Denied,
    /// Any other error.
    Failed(String),
}

impl From<io::Error> for Blind {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl fmt::Display for Blind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("it is not there"),
            Self::Denied => f.write_str("only root may read it"),
            Self::Failed(error) => f.write_str(error),
        }
    }
}

/// The root of the files of the kernel.
#[derive(Clone, Debug)]
pub struct Root {
    at: PathBuf,
    is_live: bool,
}

impl Root {
    /// This machine.
    pub fn live() -> Self {
        let at = PathBuf::from("/");
        Self { at, is_live: true }
    }

    /// A folder with `sys`, `proc` and `boot` of another machine, whose kernel cannot be asked.
    pub fn tree(at: &Path) -> Self {
        let at = at.to_path_buf();
        Self { at, is_live: false }
    }

    /// Whether it is this machine, with a kernel that answers.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// The full path of a file such as `sys/bus`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.at.join(path)
    }

    /// The text of a file, without blanks at its ends.
    ///
    /// # Errors
    ///
    /// The reason why it is not read.
    pub fn text(&self, path: &str) -> Result<String, Blind> {
        let bytes = self.bytes(path)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// The content of a file.
    ///
    /// # Errors
    ///
    /// The reason why it is not read.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Blind> {
        let mut bytes = Vec::new();
        fs::File::open(self.path(path))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The size of a file by its metadata, which may be more than the caller may read.
    ///
    /// # Errors
    ///
    /// The reason why it is not known.
    pub fn size(&self, path: &str) -> Result<u64, Blind> {
        Ok(fs::metadata(self.path(path))?.len())
    }

    /// The names in a folder, in order.
    ///
    /// # Errors
    ///
    /// The reason why it is not read.
    pub fn names(&self, path: &str) -> Result<Vec<String>, Blind> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// The last part of the target of a link.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The parts of the real path of a file, with all links followed.
    pub fn real(&self, path: &str) -> Option<Vec<String>> {
        let real = fs::canonicalize(self.path(path)).ok()?;
        let parts = real.components();
        Some(
            parts
                .map(|part| part.as_os_str().to_string_lossy().into_owned())
                .collect(),
        )
    }

    /// Whether a file is there, as far as the caller sees.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// How to see what the caller may not read.
    pub fn as_root(&self) -> &'static str {
        match self.is_live {
            true => AS_ROOT,
            false => COPIED_AS_ROOT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_for_a_copy_is_about_the_copy() {
        let live = Root::live().as_root();
        assert_eq!(live, "run it as root outside a container");
        let copy = Root::tree(Path::new("/nowhere")).as_root();
        assert_eq!(copy, format!("{live}, or make the copy that way"));
    }
}
