//! Which service answers a call.
//!
//! Nearly every call is Envoy's one question. It does not take the way through the router, whose matching, parameters and boxes
//! cost a tenth of the whole answer. Every other call does.

use std::{convert::Infallible, future::Future};

use futures_util::{FutureExt as _, future::Either};
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::{body::Body, service::Routes};
use tower::{Service as _, ServiceExt as _};

use super::{
    proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer, service::RateLimitDoor,
};
use crate::drain::{self, Calls, Counted};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, Debug)]
pub struct Services {
    rate_limit: Option<RateLimitServiceServer<RateLimitDoor>>,
    /// All services, this one among them: it has to answer for methods that it does not have.
    routes: Routes,
}

impl Services {
    #[must_use]
    pub fn new(rate_limit: RateLimitServiceServer<RateLimitDoor>, others: Routes) -> Self {
        let routes = others.add_service(rate_limit.clone()).prepare();
        Self { rate_limit: Some(rate_limit), routes }
    }

    /// Answers one request of a connection.
    pub fn answer(
        &self,
        calls: &Calls,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Counted<Body>>, Infallible>> + use<> {
        let path = request.uri().path();
        let call = (!is_watch(path)).then(|| calls.begin());
        if let (Some(rate_limit), SHOULD_RATE_LIMIT) = (&self.rate_limit, path) {
            return Either::Left(drain::answer(call, rate_limit.clone().call(request)));
        }
        let answering = self.routes.clone().oneshot(request.map(Body::new));
        Either::Right(drain::answer(call, answering).boxed())
    }
}

impl From<Routes> for Services {
    fn from(routes: Routes) -> Self {
        Self { rate_limit: None, routes }
    }
}

/// Calls that go on until the caller ends them: nobody waits for these.
fn is_watch(path: &str) -> bool {
    path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection.")
}
