//! TLS for the gRPC door: the certificate and the CA from files, read anew when they change, and the check of a caller's
//! certificate. What cannot be used never replaces what can. Knows nothing of HTTP or calls.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::{TLS12, TLS13},
};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use webpki::EndEntityCert;

use super::validity;
use crate::{panics, rfc3339::rfc3339, telemetry::metrics::TlsMetrics};

/// How often the files are read. New content is put to use once it was read twice alike, so that files that are being
/// written are seldom judged.
const POLL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Callers must show a certificate that this CA signed.
    pub client_ca: Option<PathBuf>,
    /// And it must be valid for this name.
    pub client_name: Option<ClientName>,
}

/// What a caller's certificate must be valid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    Host(ServerName<'static>),
    /// Such as `spiffe://cluster.local/ns/edge/sa/envoy`, compared letter by letter.
    Uri(Box<str>),
}

impl ClientName {
    /// `None` if it is neither a URI nor a host name or address.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains("://") {
            return Some(Self::Uri(text.into()));
        }
        ServerName::try_from(text.to_owned()).ok().map(Self::Host)
    }

    fn is_in(&self, certificate: &EndEntityCert<'_>) -> bool {
        match self {
            Self::Host(name) => certificate.verify_is_valid_for_subject_name(name).is_ok(),
            Self::Uri(uri) => certificate.valid_uri_names().any(|found| found == &**uri),
        }
    }
}

/// Why TLS cannot be set up from the files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}: {message}", path.display())]
    Bad { path: PathBuf, message: String },
    #[error("{}: the certificate expired at {not_after}: put a new one there", path.display())]
    Expired { path: PathBuf, not_after: String },
}

/// The configuration in force. Connections keep the one that they began with.
pub struct Tls {
    current: ArcSwap<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }
}

/// Reads the files and puts what is good to use.
#[derive(Debug)]
pub struct TlsReloader {
    settings: TlsSettings,
    tls: Arc<Tls>,
    metrics: TlsMetrics,
    /// What was judged last, good or bad.
    judged: Files,
    /// What was read last.
    seen: Files,
    /// The last error of reading, so that it is told once.
    unreadable: Option<String>,
}

impl TlsReloader {
    /// At the start everything has to be right, but for an expired certificate: callers who do not mind are better served
    /// than refused.
    pub fn start(settings: TlsSettings, metrics: TlsMetrics) -> Result<(Arc<Tls>, Self), TlsError> {
        let files = Files::read(&settings)?;
        let (config, not_after_s) = files.build(&settings)?;
        if let Err(expired) = expired(&settings, not_after_s) {
            warn!("{expired}");
        }
        metrics.set_expiry(not_after_s);
        let tls = Arc::new(Tls { current: ArcSwap::from_pointee(config) });
        let reloader =
            Self { settings, tls: tls.clone(), metrics, judged: files.clone(), seen: files, unreadable: None };
        Ok((tls, reloader))
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let mut beat = interval(POLL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(beat.tick()).await.is_some() {
            let looked = tokio::task::spawn_blocking(move || {
                // The certificate before stays in use.
                if panics::caught_now(|| self.look()).is_err() {
                    self.metrics.failed.increment(1);
                }
                self
            });
            match looked.await {
                Ok(reloader) => self = reloader,
                Err(error) => {
                    error!(%error, "certificates are no longer watched, restart to renew them");
                    return;
                }
            }
        }
    }

    /// Reads the files once. Blocks.
    fn look(&mut self) {
        let files = match Files::read(&self.settings) {
            Ok(files) => files,
            Err(unreadable) => return self.refuse_unreadable(&unreadable),
        };
        self.unreadable = None;
        let settled = files == self.seen;
        self.seen = files;
        if !settled || self.seen == self.judged {
            return;
        }
        self.judged = self.seen.clone();
        let built = self.judged.build(&self.settings).and_then(|(config, not_after_s)| {
            expired(&self.settings, not_after_s)?;
            Ok((config, not_after_s))
        });
        match built {
            Ok((config, not_after_s)) => {
                self.tls.current.store(Arc::new(config));
                self.metrics.set_expiry(not_after_s);
                self.metrics.applied.increment(1);
                let file = self.settings.certificate.display();
                info!(certificate = %file, not_after = %shown(not_after_s), "certificate renewed");
            }
            Err(refused) => {
                self.metrics.failed.increment(1);
                error!("{refused}; the certificate before stays in use");
            }
        }
    }

    fn refuse_unreadable(&mut self, unreadable: &TlsError) {
        let message = unreadable.to_string();
        if self.unreadable.as_ref() != Some(&message) {
            self.metrics.failed.increment(1);
            error!("{message}; the certificate before stays in use");
            self.unreadable = Some(message);
        }
    }
}

/// When the certificates in the files end, in seconds since 1970, in the order of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    pub chain_s: Vec<u64>,
    pub client_ca_s: Vec<u64>,
}

/// Judges the files as at the start. Blocks.
pub fn inspect(settings: &TlsSettings) -> Result<Ends, TlsError> {
    let files = Files::read(settings)?;
    files.build(settings)?;
    Ok(Ends {
        chain_s: ends_s(&files.certificate),
        client_ca_s: files.client_ca.as_deref().map(ends_s).unwrap_or_default(),
    })
}

/// When these certificates end. None where there are none.
#[must_use]
pub fn ends_s(pem: &[u8]) -> Vec<u64> {
    let found = certificates(pem).unwrap_or_default();
    found.iter().filter_map(|certificate| validity::not_after_s(certificate)).collect()
}

fn expired(settings: &TlsSettings, not_after_s: u64) -> Result<(), TlsError> {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now_s < not_after_s {
        return Ok(());
    }
    Err(TlsError::Expired { path: settings.certificate.clone(), not_after: shown(not_after_s) })
}

/// In UTC.
#[must_use]
pub fn shown(unix_s: u64) -> String {
    rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s))
}

/// The bytes of the files. Its Debug shows none, because one is a key.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

impl Files {
    fn read(settings: &TlsSettings) -> Result<Self, TlsError> {
        let read =
            |path: &Path| std::fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source });
        Ok(Self {
            certificate: read(&settings.certificate)?,
            key: read(&settings.key)?,
            client_ca: settings.client_ca.as_deref().map(read).transpose()?,
        })
    }

    /// What to serve, and when its certificate ends.
    fn build(&self, settings: &TlsSettings) -> Result<(ServerConfig, u64), TlsError> {
        let bad = |path: &Path, message: String| TlsError::Bad { path: path.to_owned(), message };
        let chain = certificates(&self.certificate).map_err(|message| bad(&settings.certificate, message))?;
        let not_after_s = validity::not_after_s(&chain[0])
            .ok_or_else(|| bad(&settings.certificate, "no certificate that can be understood".to_owned()))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| bad(&settings.key, "no private key in PEM form".to_owned()))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| bad(&settings.certificate, error.to_string()))?;
        let builder = match (&self.client_ca, &settings.client_ca) {
            (Some(pem), Some(path)) => {
                let verifier = verifier(pem, settings.client_name.clone(), provider);
                builder.with_client_cert_verifier(verifier.map_err(|message| bad(path, message))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| bad(&settings.key, format!("cannot serve {}: {error}", settings.certificate.display())))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok((config, not_after_s))
    }
}

/// At least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("no certificate in PEM form".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn verifier(
    pem: &[u8],
    name: Option<ClientName>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| error.to_string())?;
    Ok(match name {
        Some(name) => Arc::new(NamedCallers { signed, name }),
        None => signed,
    })
}

/// Takes a certificate that the CA signed and that is valid for one name.
#[derive(Debug)]
struct NamedCallers {
    signed: Arc<dyn ClientCertVerifier>,
    name: ClientName,
}

impl ClientCertVerifier for NamedCallers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        let parsed = EndEntityCert::try_from(end_entity).map_err(|_| rustls::CertificateError::BadEncoding)?;
        if self.name.is_in(&parsed) {
            return Ok(verified);
        }
        Err(rustls::CertificateError::NotValidForName.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_has_ended_is_named_with_its_end() {
        let settings =
            TlsSettings { certificate: "tls.crt".into(), key: "tls.key".into(), client_ca: None, client_name: None };
        assert!(expired(&settings, 4_000_000_000).is_ok());
        let error = expired(&settings, 1_709_251_199).unwrap_err().to_string();
        assert_eq!(error, "tls.crt: the certificate expired at 2024-02-29T23:59:59Z: put a new one there");
    }

    #[test]
    fn a_client_name_is_a_uri_a_host_or_an_address() {
        assert_eq!(ClientName::parse("spiffe://a/b"), Some(ClientName::Uri("spiffe://a/b".into())));
        assert!(matches!(ClientName::parse("envoy.test"), Some(ClientName::Host(ServerName::DnsName(_)))));
        assert!(matches!(ClientName::parse("10.0.0.1"), Some(ClientName::Host(ServerName::IpAddress(_)))));
        assert_eq!(ClientName::parse("not a name"), None);
    }
}
