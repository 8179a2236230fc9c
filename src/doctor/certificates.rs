//! When certificates end: those in our files, and those that servers show. Nothing is sent over a connection that was made only
//! to look at a certificate, so that who it belongs to need not be verified.

use std::{
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::finding::{Finding, Verdict};
use crate::{
    config::settings::Settings,
    grpc::{
        tls::{TlsSettings, ends_s, inspect, shown},
        validity,
    },
    store::redis::settings::{Address, Tls},
};

/// From so many days before its end on, a certificate is about to end. Those who renew by themselves do it earlier.
const SOON_DAYS: u64 = 14;
const DAY_S: u64 = 24 * 60 * 60;
const PATIENCE: Duration = Duration::from_secs(1);

/// The certificates in our files.
pub async fn examine(settings: &Settings) -> Vec<Finding> {
    let settings = settings.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let mut findings = settings.grpc.tls.as_ref().map_or_else(Vec::new, own);
        let stores = settings.store.redis.iter().flat_map(|(main, per_second)| std::iter::once(main).chain(per_second));
        // Both stores have the same files.
        findings.extend(stores.filter_map(|store| store.tls.as_ref()).take(1).flat_map(of_store));
        findings
    });
    looked.await.unwrap_or_else(|error| vec![Finding::fail("tls", &"", format!("could not be looked at: {error}"))])
}

fn own(tls: &TlsSettings) -> Vec<Finding> {
    let (certificate, client_ca) = (tls.certificate.display(), tls.client_ca.as_deref());
    match inspect(tls) {
        Err(error) => vec![Finding::fail("tls", &"GRPC_SERVER_TLS_CERT", format!("`serve` does not start: {error}"))],
        Ok(ends) => {
            let mut findings = judge_chain(&certificate, "our certificate", &ends.chain_s, true);
            let authority = client_ca.map(|path| path.display());
            findings.extend(authority.and_then(|path| judge_bundle(&path, "the CA of our callers", &ends.client_ca_s)));
            findings
        }
    }
}

/// What we verify the store with, and what we show it.
fn of_store(tls: &Tls) -> Vec<Finding> {
    let ca = tls.ca.as_deref().map(|path| ("REDIS_TLS_CACERT", "the CA of the store", path));
    let client = tls.client_certificate.as_ref();
    let client = client.map(|(path, _)| ("REDIS_TLS_CLIENT_CERT", "our certificate for the store", &**path));
    let judged = |(env, what, path): (&str, &str, &Path)| {
        let ends = match fs::read(path) {
            Err(error) => return vec![Finding::fail("tls", &env, format!("cannot read {}: {error}", path.display()))],
            Ok(pem) => ends_s(&pem),
        };
        let target = path.display();
        let found = if env == "REDIS_TLS_CACERT" {
            judge_bundle(&target, what, &ends).into_iter().collect()
        } else {
            judge_chain(&target, what, &ends, true)
        };
        if found.is_empty() {
            return vec![Finding::fail("tls", &env, format!("{target} holds no certificate in PEM form"))];
        }
        found
    };
    [ca, client].into_iter().flatten().flat_map(judged).collect()
}

/// A certificate and those behind it, by when they end. One of those behind it that has ended may not matter: there may be another way to
/// a root, as where one is signed by two. Whoever has believed it knows.
pub fn judge_chain(target: &impl ToString, what: &str, ends_s: &[u64], was_believed: bool) -> Vec<Finding> {
    let Some((first_s, behind_s)) = ends_s.split_first() else { return Vec::new() };
    let mut findings = vec![judge(target, what, *first_s)];
    if let Some(end_s) = behind_s.iter().min().filter(|end_s| *end_s < first_s) {
        let mut behind = judge(target, &format!("a certificate that stands behind {what}"), *end_s);
        if was_believed {
            behind.verdict = behind.verdict.min(Verdict::Warn);
        }
        findings.extend((behind.verdict != Verdict::Ok).then_some(behind));
    }
    findings
}

/// Certificates that are all believed: as long as one of them lasts, the others may be old, as in every bundle of many.
fn judge_bundle(target: &impl ToString, what: &str, ends_s: &[u64]) -> Option<Finding> {
    let last_s = ends_s.iter().max()?;
    let mut finding = judge(target, what, *last_s);
    if ends_s.len() > 1 {
        finding.message = format!("of {} certificates the last to end: {}", ends_s.len(), finding.message);
    }
    Some(finding)
}

/// Whether a certificate has ended, or is about to.
pub fn judge(target: &impl ToString, what: &str, end_s: u64) -> Finding {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    judge_at(now_s, target, what, end_s)
}

fn judge_at(now_s: u64, target: &impl ToString, what: &str, end_s: u64) -> Finding {
    let end = shown(end_s);
    match end_s.checked_sub(now_s) {
        None | Some(0) => Finding::fail("tls", target, format!("{what} expired at {end}: renew it")),
        Some(left) if left < SOON_DAYS * DAY_S => {
            Finding::warn("tls", target, format!("{what} ends at {end}, in {} days: renew it", left / DAY_S))
        }
        Some(left) => Finding::ok("tls", target, format!("{what} ends at {end}, in {} days", left / DAY_S)),
    }
}

/// When the certificates end that a server shows, its own first, whether we would believe them or not. `None` where nothing speaks
/// TLS.
pub async fn presented(address: &Address) -> Option<Vec<u64>> {
    let Address::Tcp { host, port } = address else { return None };
    let looking = async {
        let stream = TcpStream::connect((&**host, *port)).await.ok()?;
        Some(handshake(stream, host, &[]).await.1).filter(|ends_s| !ends_s.is_empty())
    };
    timeout(PATIENCE, looking).await.ok()?
}

/// Speaks TLS to anybody, and says when the certificates end that were shown, even where the other side then broke off.
pub async fn handshake<S>(stream: S, host: &str, protocols: &[&[u8]]) -> (io::Result<TlsStream<S>>, Vec<u64>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let provider = Arc::new(ring::default_provider());
    let anybody = Arc::new(Anybody { provider: provider.clone(), ends_s: Mutex::default() });
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other);
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let (name, config) = match (name, config.map_err(io::Error::other)) {
        (Ok(name), Ok(config)) => (name, config),
        (Err(error), _) | (_, Err(error)) => return (Err(error), Vec::new()),
    };
    let mut config = config.dangerous().with_custom_certificate_verifier(anybody.clone()).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let ends_s = anybody.ends_s.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (connected, ends_s)
}

/// Believes everything, and remembers when the certificates of the chain end.
#[derive(Debug)]
struct Anybody {
    provider: Arc<CryptoProvider>,
    ends_s: Mutex<Vec<u64>>,
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chain = std::iter::once(end_entity).chain(intermediates);
        let ends_s = chain.filter_map(|certificate| validity::not_after_s(certificate)).collect();
        *self.ends_s.lock().unwrap_or_else(PoisonError::into_inner) = ends_s;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_told_before_it_ends_and_after() {
        let verdict = |end_s| judge_at(1_000_000_000, &"tls.crt", "ours", end_s).verdict;
        assert_eq!(verdict(1_000_000_000), Verdict::Fail);
        assert_eq!(verdict(999_999_999), Verdict::Fail);
        assert_eq!(verdict(1_000_000_000 + SOON_DAYS * DAY_S - 1), Verdict::Warn);
        assert_eq!(verdict(1_000_000_000 + SOON_DAYS * DAY_S), Verdict::Ok);
        let message = judge_at(1_000_000_000, &"tls.crt", "ours", 1_000_000_000 - 1).message;
        assert_eq!(message, "ours expired at 2001-09-09T01:46:39Z: renew it");
    }

    #[test]
    fn of_a_chain_the_certificates_behind_the_first_count_and_of_a_bundle_only_the_last() {
        let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let (past, late) = (now_s - 1, now_s + 365 * DAY_S);
        let chain = |ends_s: &[u64], was_believed| -> Vec<Verdict> {
            judge_chain(&"a", "ours", ends_s, was_believed).iter().map(|finding| finding.verdict).collect()
        };
        assert_eq!(chain(&[late, late - 1], true), [Verdict::Ok]);
        assert_eq!(chain(&[late, past], true), [Verdict::Ok, Verdict::Warn]);
        assert_eq!(chain(&[late, past], false), [Verdict::Ok, Verdict::Fail]);
        assert_eq!(chain(&[past, late], true), [Verdict::Fail]);
        assert_eq!(chain(&[], true), []);
        let bundle = |ends_s: &[u64]| judge_bundle(&"a", "the CA", ends_s).map(|finding| finding.verdict);
        assert_eq!(bundle(&[past, late, past]), Some(Verdict::Ok));
        assert_eq!(bundle(&[past, past]), Some(Verdict::Fail));
        assert_eq!(bundle(&[]), None);
    }
}
