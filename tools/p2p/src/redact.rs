// SPDX-License-Identifier: GPL-2.0

//! Removes everything from a text that identifies a machine or a person.

use serde_json::Value;

use crate::files::Root;

/// Users with a lower number are those of the system, which all machines have.
const FIRST_USER: u32 = 1000;
/// A run of this many hexadecimal digits is a serial number of a device.
const LONG: usize = 12;

/// The words and paths to remove, besides addresses and numbers.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    /// Words, and their replacements.
    words: Vec<(String, &'static str)>,
    /// Folders, the longest first.
    homes: Vec<String>,
}

impl Redaction {
    /// The host and the users of a machine.
    pub fn of(root: &Root) -> Self {
        let mut this = Self::default();
        let host = root.text("proc/sys/kernel/hostname").unwrap_or_default();
        // Of a full name each part is a name as well.
        this.word(host.split('.').next().unwrap_or(""), "[host]");
        this.word(&host, "[host]");
        if let Ok(domain) = root.text("proc/sys/kernel/domainname") {
            if domain != "(none)" {
                this.word(&domain, "[host]");
            }
        }
        for line in root.text("etc/passwd").unwrap_or_default().lines() {
            let fields: Vec<_> = line.split(':').collect();
            let (Some(name), Some(number), Some(home)) =
                (fields.first(), fields.get(2), fields.get(5))
            else {
                continue;
            };
            if number.parse::<u32>().is_ok_and(|it| it >= FIRST_USER) && *name != "nobody" {
                this.word(name, "[user]");
                this.home(home);
            }
        }
        if root.is_live() {
            for key in ["USER", "LOGNAME", "SUDO_USER"] {
                this.word(&std::env::var(key).unwrap_or_default(), "[user]");
            }
            this.home(&std::env::var("HOME").unwrap_or_default());
        }
        this
    }

    fn word(&mut self, word: &str, mark: &'static str) {
        if !word.is_empty() && !matches!(word, "root" | "localhost") {
            self.words.push((word.to_string(), mark));
            self.words
                .sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        }
    }

    fn home(&mut self, home: &str) {
        if home.len() > 1 {
            self.homes.push(home.to_string());
            self.homes.sort_by_key(|home| std::cmp::Reverse(home.len()));
        }
    }

    /// The text without these.
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_string();
        for home in &self.homes {
            text = replace(&text, home, "[home]");
        }
        for (word, mark) in &self.words {
            text = replace(&text, word, mark);
        }
        numbers(&homes(&text))
    }

    /// The value with all of its texts redacted.
    pub fn json(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(all) => all.into_iter().map(|it| self.json(it)).collect(),
            Value::Object(all) => all
                .into_iter()
                .map(|(key, it)| (key, self.json(it)))
                .collect(),
            other => other,
        }
    }
}

fn is_word(c: Option<char>) -> bool {
    // Names are joined by underscores.
    c.is_some_and(char::is_alphanumeric)
}

/// Replaces a word, or a path, in large or small letters, where it is not a part of another one.
fn replace(text: &str, word: &str, mark: &str) -> String {
    let mut done = String::new();
    let mut rest = text;
    let word = word.to_ascii_lowercase();
    // In ASCII, the letters of both cases have the same length.
    let lower = text.to_ascii_lowercase();
    while let Some(at) = lower[text.len() - rest.len()..].find(&word) {
        let (before, found) = rest.split_at(at);
        let after = &found[word.len()..];
        let is_part = is_word(before.chars().next_back().or(done.chars().next_back()))
            && is_word(word.chars().next())
            || is_word(after.chars().next());
        done += before;
        done += if is_part { &found[..word.len()] } else { mark };
        rest = after;
    }
    done + rest
}

/// Homes of users that the machine does not list, of a directory of users for example.
fn homes(text: &str) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/home/") {
        done += &rest[..at];
        done += "[home]";
        let name = &rest[at + "/home/".len()..];
        let end = name.find(|c: char| c == '/' || c.is_whitespace() || c == '"');
        rest = &name[end.unwrap_or(name.len())..];
    }
    done + rest
}

/// MAC addresses, GUIDs and other long numbers.
fn numbers(text: &str) -> String {
    let mut done = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_part = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '-';
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        if end == 0 {
            let next = rest.find(is_part).unwrap_or(rest.len());
            done += &rest[..next];
            rest = &rest[next..];
            continue;
        }
        let run = &rest[..end];
        let groups: Vec<_> = run.split([':', '-']).filter(|it| !it.is_empty()).collect();
        let of_length = |length: usize| groups.iter().filter(|it| it.len() == length).count();
        let named = |prefix: &str| done.ends_with(prefix);
        let digits_only = run.bytes().all(|c| c.is_ascii_digit());
        let is_long =
            groups.iter().any(|it| it.len() >= LONG) && (!digits_only || named("x") || named("X"));
        // A PCI name has one group of four and two of two.
        let is_address = of_length(2) >= 6 || of_length(4) >= 4 && groups.len() >= 4;
        done += if is_long || is_address {
            "[number]"
        } else {
            run
        };
        rest = &rest[end..];
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction() -> Redaction {
        let mut this = Redaction::default();
        this.word("node7", "[host]");
        this.word("node7.example.org", "[host]");
        this.word("ann", "[user]");
        this.home("/srv/people/ann");
        this
    }

    #[test]
    fn names() {
        let it = redaction();
        assert_eq!(
            it.text("6.12-node7 on node7.example.org"),
            "6.12-[host] on [host]"
        );
        assert_eq!(
            it.text("ann's channel, annex, ann"),
            "[user]'s channel, annex, [user]"
        );
        assert_eq!(
            it.text("ann_train node7_frame Ann NODE7.Example.org"),
            "[user]_train [host]_frame [user] [host]"
        );
        assert_eq!(it.text("/srv/people/ann/x"), "[home]/x");
        assert_eq!(
            it.text("\"/home/bob/model\" /home/eve"),
            "\"[home]/model\" [home]"
        );
        let mut of_root = Redaction::default();
        of_root.word("root", "[user]");
        assert_eq!(of_root.text("a root port"), "a root port");
    }

    #[test]
    fn numbers_of_devices() {
        let it = Redaction::default();
        assert_eq!(it.text("mac 52:54:00:12:34:56."), "mac [number].");
        assert_eq!(it.text("mac 52-54-00-12-34-56"), "mac [number]");
        assert_eq!(it.text("guid b859:9f03:00c4:1a2e"), "guid [number]");
        assert_eq!(
            it.text("gid fe80:0000:0000:0000:ba59:9fff:fec4:1a2e"),
            "gid [number]"
        );
        assert_eq!(it.text("enx525400123456"), "enx[number]");
        assert_eq!(it.text("0xb8599f0300c41a2e"), "0x[number]");
        assert_eq!(
            it.text("uuid 01234567-89ab-cdef-0123-456789abcdef"),
            "uuid [number]"
        );
        for kept in [
            "0000:03:00.0",
            "10000:e1:00.0 and 0000:03:00.0",
            "pci=disable_acs_redir=0000:02:00.0;0000:02:01.0",
            "8086:29c0",
            "274877906945 B",
            "21.747104",
            "a-b-c 2026-01-01",
        ] {
            assert_eq!(it.text(kept), kept);
        }
    }

    #[test]
    fn values() {
        let value = serde_json::json!({ "node7": ["node7", 7, { "a": "ann" }] });
        let want = serde_json::json!({ "node7": ["[host]", 7, { "a": "[user]" }] });
        assert_eq!(redaction().json(value), want);
    }
}
