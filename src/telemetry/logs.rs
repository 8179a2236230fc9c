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
    rfc3339::rfc3339,
};

/// Installs the log for the whole process. Only the first call has an effect.
pub fn install(settings: &TelemetrySettings) {
    // Libraries speak up only when something is wrong, or when everything is wanted.
    let libraries = if settings.log_level == Level::TRACE { Level::TRACE } else { Level::WARN };
    let filter = EnvFilter::new(format!("{libraries},sluice={}", settings.log_level));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
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
            return writeln!(out, "{}", Value::Object(line));
        }
        write!(out, "{time} {level:7} {}", escaped(&fields.message))?;
        for (name, value) in fields.others {
            match value {
                Value::String(text) if text.is_empty() || text.contains([' ', '"', '=']) => {
                    write!(out, " {name}={:?}", escaped(&text))?;
                }
                Value::String(text) => write!(out, " {name}={}", escaped(&text))?,
                value => write!(out, " {name}={value}")?,
            }
        }
        writeln!(out)
    }
}

/// No text from outside can forge a line or steer a terminal. Lines of our own, such as excerpts of rules, stay.
fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() && c != '\n' { c.escape_default().collect() } else { vec![c] })
        .collect()
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
    fn a_value_cannot_forge_a_log_line() {
        assert_eq!(escaped("a\r\x1b[31m"), "a\\r\\u{1b}[31m");
    }
}
