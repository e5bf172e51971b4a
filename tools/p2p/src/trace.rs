// SPDX-License-Identifier: GPL-2.0

//! Lines of the tracepoints `drm_peer_*`.

use serde_json::{json, Value};

use crate::table;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time stamp, as the trace has it.
    pub time: String,
    /// The task, with its number.
    pub task: String,
    /// The name of the event, without `drm_peer_`.
    pub name: String,
    /// Fields and their values, in their order.
    pub fields: Vec<(String, String)>,
}

impl Event {
    /// Reads a line; [`None`] if it is another event, or none.
    pub fn parse(line: &str) -> Option<Self> {
        let (head, event) = line.split_once(": drm_peer_")?;
        let (name, fields) = event.split_once(": ")?;
        let (task, _) = head.split_once(" [").unwrap_or((head, ""));
        let fields = fields
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        Some(Self {
            time: head.split_whitespace().last()?.to_string(),
            task: task.trim().to_string(),
            name: name.to_string(),
            fields: fields
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect(),
        })
    }

    /// A field.
    pub fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    /// Whether it is a fallback, a refusal or an error.
    pub fn is_fallback(&self) -> bool {
        let failed = !matches!(self.field("ret"), "" | "0");
        let importer = matches!(self.name.as_str(), "attach" | "map" | "pin");
        failed || importer && !matches!(self.field("path"), "" | "bus" | "host-bridge" | "link")
    }

    /// In words.
    pub fn text(&self) -> String {
        let size = self
            .field("size")
            .parse()
            .map_or_else(|_| String::new(), table::bytes);
        let what = match self.name.as_str() {
            "move" => {
                let evicted = if self.field("evict") == "1" {
                    ", evicted"
                } else {
                    ""
                };
                format!("{} -> {}{evicted}", self.field("from"), self.field("to"))
            }
            "invalidate" => format!("in {}", self.field("placement")),
            _ => {
                let reason = match self.field("reason") {
                    "none" | "" => String::new(),
                    reason => format!(": {reason}"),
                };
                format!(
                    "<- {}  {}{reason}",
                    self.field("importer"),
                    self.field("path")
                )
            }
        };
        let ret = match self.field("ret") {
            "" | "0" => String::new(),
            error => format!("  error {error}"),
        };
        format!(
            "{} {} {:<10}  {} #{}  {size}  {what}{ret}",
            if self.is_fallback() { "!" } else { " " },
            self.time,
            self.name,
            self.field("exporter"),
            self.field("id"),
        )
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let mut object = serde_json::Map::new();
        object.insert("event".into(), json!(self.name));
        object.insert("time".into(), json!(self.time));
        object.insert("task".into(), json!(self.task));
        object.insert("fallback".into(), json!(self.is_fallback()));
        for (key, value) in &self.fields {
            let number = value.parse::<i64>().map(|it| json!(it));
            object.insert(key.clone(), number.unwrap_or_else(|_| json!(value)));
        }
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events() {
        let line = "  vvram_move-123     [002] d..1.    21.747104: drm_peer_move: \
                    exporter=0000:03:00.0 id=8 size=8192 from=vram to=system evict=1 ret=0";
        let event = Event::parse(line).unwrap();
        assert_eq!((&*event.name, &*event.time), ("move", "21.747104"));
        assert_eq!(event.task, "vvram_move-123");
        assert!(!event.is_fallback());
        assert!(
            event.text().contains("#8  8 KiB  vram -> system, evicted"),
            "{}",
            event.text()
        );
        assert_eq!(event.json()["size"], 8192);
        assert_eq!(event.json()["exporter"], "0000:03:00.0");
        assert_eq!(Event::parse("# tracer: nop"), None);
        assert_eq!(Event::parse("x-1 [0] 1.0: sched_switch: a=b"), None);
    }

    #[test]
    fn fallbacks() {
        let event = |name: &str, path: &str, reason: &str, ret: i32| {
            Event::parse(&format!(
                "x-1 [000] ..... 1.0: drm_peer_{name}: exporter=a id=1 size=4096 importer=b \
                 path={path} reason={reason} ret={ret}"
            ))
            .unwrap()
        };
        assert!(!event("attach", "bus", "none", 0).is_fallback());
        assert!(!event("map", "host-bridge", "none", 0).is_fallback());
        let system = event("map", "system", "no-vram", 0);
        assert!(system.is_fallback());
        assert!(system.text().starts_with("! 1.0 map"), "{}", system.text());
        assert!(
            system.text().ends_with("<- b  system: no-vram"),
            "{}",
            system.text()
        );
        assert!(event("attach", "refused", "no-route", -95)
            .text()
            .ends_with("error -95"));
        assert!(event("pin", "bus", "quota", -122).is_fallback());
        // The end of a mapping is no fallback.
        assert!(!event("unmap", "system", "no-vram", 0).is_fallback());
    }
}
