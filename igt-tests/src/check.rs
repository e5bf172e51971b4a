// SPDX-License-Identifier: GPL-2.0

//! Errors with a description, and the assertions that produce them.

use std::fmt;
use std::io;
use std::panic::Location;

/// A system call that failed, with its arguments and the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysError {
    /// The call and its arguments.
    pub what: String,
    /// The value of errno.
    pub errno: i32,
}

impl SysError {
    /// The error the calling thread saw last.
    pub fn last(what: impl Into<String>) -> Self {
        Self::new(what, io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// An error with a given number.
    pub fn new(what: impl Into<String>, errno: i32) -> Self {
        Self {
            what: what.into(),
            errno,
        }
    }

    /// An error of the standard library, with a description of the operation.
    pub fn io(what: impl Into<String>, error: &io::Error) -> Self {
        Self::new(what, error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.what, errno_name(self.errno))
    }
}

/// A feature that a machine may lack. The lab knows which machine has which features: if a subtest
/// skips for want of a feature that the machine has, it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A route between exporter and importer that PCI permits.
    Route,
    /// Exporter and importer are each in a slot of their own, so that they can be unplugged and
    /// reset alone.
    OwnSlot,
    /// An IOMMU that translates the importer's addresses.
    Iommu,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Route => "route",
            Self::OwnSlot => "own-slot",
            Self::Iommu => "iommu",
        })
    }
}

/// Why a subtest ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It cannot apply here; the text says why.
    Skip(String),
    /// It failed; the text has the expected and the actual result.
    Fail(String),
}

impl Stop {
    /// A failure that names the line of the caller.
    #[track_caller]
    pub fn fail(text: impl fmt::Display) -> Self {
        let at = Location::caller();
        Self::Fail(format!("{}:{}: {text}", at.file(), at.line()))
    }

    /// A skip.
    pub fn skip(text: impl fmt::Display) -> Self {
        Self::Skip(text.to_string())
    }

    /// A skip for want of a feature; the lab parses the text.
    pub fn needs(need: Need) -> Self {
        Self::skip(format_args!("needs {need}"))
    }

    /// The text without its kind.
    pub fn text(&self) -> &str {
        match self {
            Self::Skip(text) | Self::Fail(text) => text,
        }
    }
}

impl From<SysError> for Stop {
    #[track_caller]
    fn from(error: SysError) -> Self {
        Self::fail(error)
    }
}

/// What a subtest returns.
pub type Outcome = Result<(), Stop>;

/// Fails the subtest with a text.
#[macro_export]
macro_rules! fail {
    ($($arg:tt)*) => {
        return Err($crate::Stop::fail(format_args!($($arg)*)))
    };
}

/// Skips the subtest with a reason.
#[macro_export]
macro_rules! skip {
    ($($arg:tt)*) => {
        return Err($crate::Stop::skip(format_args!($($arg)*)))
    };
}

/// Fails the subtest unless a condition holds.
#[macro_export]
macro_rules! check {
    ($cond:expr, $($arg:tt)*) => {
        if !$cond {
            $crate::fail!($($arg)*);
        }
    };
}

/// Fails the subtest unless two values are equal.
#[macro_export]
macro_rules! check_eq {
    ($seen:expr, $want:expr, $($arg:tt)*) => {{
        let (seen, want) = (&$seen, &$want);
        if seen != want {
            $crate::fail!(
                "{}: expected {want:?}, saw {seen:?}",
                format_args!($($arg)*)
            );
        }
    }};
}

/// Fails the subtest if a result is an error, such as bytes that differ.
#[macro_export]
macro_rules! check_ok {
    ($result:expr, $($arg:tt)*) => {
        if let Err(error) = $result {
            $crate::fail!("{}: {error}", format_args!($($arg)*));
        }
    };
}

/// Expects a call to fail with one error.
///
/// # Errors
///
/// Fails the subtest if the call succeeded or failed in another way.
#[track_caller]
pub fn expect_errno<T>(what: &str, result: Result<T, SysError>, want: i32) -> Outcome {
    let name = errno_name(want);
    match result {
        Err(error) if error.errno == want => Ok(()),
        Err(error) => Err(Stop::fail(format_args!(
            "{what}: expected {name}, but {error}"
        ))),
        Ok(_) => Err(Stop::fail(format_args!(
            "{what}: expected {name}, but it succeeded"
        ))),
    }
}

/// Name of an error number, such as `EINVAL`.
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        0 => "no error",
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::E2BIG => "E2BIG",
        libc::EBADF => "EBADF",
        libc::ECHILD => "ECHILD",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::ESPIPE => "ESPIPE",
        libc::EPIPE => "EPIPE",
        libc::ERANGE => "ERANGE",
        libc::EDEADLK => "EDEADLK",
        libc::ENOSYS => "ENOSYS",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::ETIME => "ETIME",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EDQUOT => "EDQUOT",
        libc::ECANCELED => "ECANCELED",
        _ => return format!("errno {errno}"),
    };
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Outcome {
        Err(SysError::new("open(x)", libc::ENOENT))?;
        Ok(())
    }

    #[test]
    fn a_failure_names_line_call_and_error() {
        let Err(Stop::Fail(text)) = calls() else {
            panic!("it should fail");
        };
        assert!(text.starts_with("src/check.rs:"), "{text}");
        assert!(text.ends_with(": open(x) failed: ENOENT"), "{text}");
    }

    #[test]
    fn a_need_is_named_as_the_lab_reads_it() {
        let texts = [Need::Route, Need::OwnSlot, Need::Iommu].map(Stop::needs);
        let want = ["needs route", "needs own-slot", "needs iommu"];
        assert_eq!(texts, want.map(|text| Stop::Skip(text.to_string())));
    }

    #[test]
    fn the_right_error_is_expected() {
        let result = || Err::<(), _>(SysError::new("map", libc::EINVAL));
        assert_eq!(expect_errno("mapping", result(), libc::EINVAL), Ok(()));
        let Err(stop) = expect_errno("mapping", result(), libc::ENODEV) else {
            panic!("it should fail");
        };
        assert!(stop
            .text()
            .ends_with("expected ENODEV, but map failed: EINVAL"));
        assert!(expect_errno("mapping", Ok(()), libc::EINVAL).is_err());
    }
}
