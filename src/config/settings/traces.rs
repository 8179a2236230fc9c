//! Settings of traces, by the reference's names. Where traces go is in `OTEL_EXPORTER_OTLP_*`, which the exporter reads.

use std::time::Duration;

use super::Reader;
use crate::telemetry::traces::{Protocol, TraceSettings};

/// OpenTelemetry's own.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

impl<L: Fn(&str) -> Option<String>> Reader<L> {
    pub(super) fn traces(&self) -> Option<TraceSettings> {
        let wanted = self.bool("TRACING_ENABLED");
        let protocol = self.parsed("TRACING_EXPORTER_PROTOCOL", Protocol::Http, |text| match text {
            "http" => Ok(Protocol::Http),
            "grpc" => Ok(Protocol::Grpc),
            _ => Err("use http or grpc".to_owned()),
        });
        let sampling_rate = self.parsed("TRACING_SAMPLING_RATE", 1.0, |text| match text.parse() {
            Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
            _ => Err("use a number from 0 to 1".to_owned()),
        });
        let named = self.given("TRACING_SERVICE_NAME").or_else(|| (self.lookup)("OTEL_SERVICE_NAME"));
        let instance = self.given("TRACING_SERVICE_INSTANCE_ID");
        let settings = TraceSettings {
            protocol,
            service_name: named.unwrap_or_else(|| self.text("TRACING_SERVICE_NAME")),
            service_namespace: self.text("TRACING_SERVICE_NAMESPACE"),
            service_instance_id: instance.unwrap_or_else(random_id),
            sampling_rate,
            timeout: self.export_timeout(),
        };
        wanted.then_some(settings)
    }

    /// In milliseconds, as OpenTelemetry has it; what cannot be read is as good as none, as it is to the exporter.
    fn export_timeout(&self) -> Duration {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let given = names.iter().find_map(|name| (self.lookup)(name)?.parse().ok());
        given.map_or(EXPORT_TIMEOUT, Duration::from_millis)
    }
}

/// A random UUID, version 4.
fn random_id() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Option<TraceSettings> {
        let lookup = |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Reader::new(lookup).traces()
    }

    #[test]
    fn nothing_is_traced_unless_it_is_wanted() {
        assert_eq!(read(&[("TRACING_EXPORTER_PROTOCOL", "grpc")]), None);
        let traces = read(&[("TRACING_ENABLED", "true")]).unwrap();
        assert_eq!((traces.protocol, &*traces.service_name, traces.sampling_rate), (Protocol::Http, "RateLimit", 1.0));
        assert_eq!(traces.timeout, EXPORT_TIMEOUT);
        let pairs = [("TRACING_ENABLED", "true"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "250")];
        assert_eq!(read(&pairs).unwrap().timeout, Duration::from_millis(250));
    }

    #[test]
    fn our_own_name_goes_before_that_of_opentelemetry() {
        let name = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> = pairs.iter().copied().chain([("TRACING_ENABLED", "true")]).collect();
            read(&pairs).unwrap().service_name
        };
        assert_eq!(name(&[("OTEL_SERVICE_NAME", "otel")]), "otel");
        assert_eq!(name(&[("OTEL_SERVICE_NAME", "otel"), ("TRACING_SERVICE_NAME", "ours")]), "ours");
    }

    #[test]
    fn an_instance_without_a_name_has_a_random_one() {
        let (one, other) = (random_id(), random_id());
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert_eq!((&one[14..15], one[19..20].chars().all(|digit| "89ab".contains(digit))), ("4", true), "{one}");
    }
}
