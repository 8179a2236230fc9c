//! Logs on standard error, as text or as JSON with the reference's field names.

use std::{fmt, time::SystemTime};

use serde_json::{Map, Value};
use tracing::{Event, Level, Subscriber, field::Visit};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::{
    config::settings::{LogFormat, TelemetrySettings},
    printable::{Printable, steers},
    rfc3339::rfc3339,
};

/// Installs the log for the whole process. Only the first call has an effect.
pub fn install(settings: &TelemetrySettings) {
    // Libraries speak up only when something is wrong, or when everything is wanted.
    let libraries = if settings.log_level == Level::TRACE { Level::TRACE } else { Level::WARN };
    // What strangers do wrong on the wire is counted and told by the doors. These two would give each of them a line of their own.
    let wire = if settings.log_level == Level::TRACE { Level::TRACE } else { Level::ERROR };
    let filter = EnvFilter::new(format!("{libraries},h2={wire},rustls={wire},sluice={}", settings.log_level));
    // A line that nobody reads any more must not end what it is about: telling of it would panic.
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    let _ = match settings.log_format {
        LogFormat::Text => lines.event_format(Lines { json: false }).try_init(),
        LogFormat::Json => lines.event_format(Lines { json: true }).try_init(),
    };
}

struct Lines {
    json: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        // Some libraries give an event a name and no sentence.
        if let (true, Some(Value::String(name))) = (fields.message.is_empty(), fields.others.get("name")) {
            fields.message.clone_from(name);
        }
        let time = rfc3339(SystemTime::now());
        let level = match *event.metadata().level() {
            Level::WARN => "warning",
            level => {
                let names = [(Level::ERROR, "error"), (Level::INFO, "info"), (Level::DEBUG, "debug")];
                names.iter().find(|(known, _)| *known == level).map_or("trace", |(_, name)| *name)
            }
        };
        if self.json {
            let mut line = Map::new();
            line.insert("@timestamp".to_owned(), time.into());
            line.insert("level".to_owned(), level.into());
            line.insert("@message".to_owned(), fields.message.into());
            line.extend(fields.others);
            return writeln!(out, "{}", escaped_json(&Value::Object(line).to_string()));
        }
        write!(out, "{time} {level:7} {}", Printable(&fields.message))?;
        for (name, value) in fields.others {
            match value {
                Value::String(text) if is_plain(&text) => write!(out, " {name}={text}")?,
                Value::String(text) => write!(out, " {name}={text:?}")?,
                value => write!(out, " {name}={value}")?,
            }
        }
        writeln!(out)
    }
}

/// A value that needs no quotes to be told apart from what stands around it.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '"', '=', '\\']) && !text.chars().any(steers)
}

/// JSON has escaped what its own grammar asks for; the rest can only stand inside of strings.
fn escaped_json(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        if steers(c) {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, name: &str, value: Value) {
        match (name, value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.others.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.put(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &tracing::field::Field, value: u64) {
        self.put(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &tracing::field::Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &tracing::field::Field, value: bool) {
        self.put(field.name(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_could_be_taken_for_more_is_quoted() {
        for plain in ["a", "1.2.3.4", "{edge}f60/2:ip7:1.2.3.4", "ümläut", "it's"] {
            assert!(is_plain(plain), "{plain}");
        }
        for hostile in ["", "a b", "a=b", "a\"b", "a\nb", "a\tb", "a\u{2028}b", "a\u{85}b", "\u{202e}", "a\\nb"] {
            assert!(!is_plain(hostile), "{hostile:?}");
        }
    }

    #[test]
    fn a_line_of_json_means_the_same_and_is_one_line_to_every_reader() {
        let value = Value::String("a\n\u{2028}\u{85}\u{9b}\u{7f}\u{202e}\u{e0001}\"\\ü".to_owned());
        let line = escaped_json(&value.to_string());
        assert!(!line.chars().any(steers), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }
}
