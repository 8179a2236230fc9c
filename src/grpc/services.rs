//! Which service answers a call.
//!
//! Nearly every call is Envoy's one question. It does not take the way through the router, whose matching, parameters and boxes
//! cost a tenth of the whole answer. Every other call does.

use std::{convert::Infallible, future::Future, sync::Arc};

use futures_util::{FutureExt as _, TryFutureExt as _, future::BoxFuture};
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tonic::{Status, body::Body, service::Routes};
use tower::ServiceExt as _;

use super::{
    intake::Intake,
    limits::{LARGE_ANSWERS_MAX, WATCHES_MAX},
    service::RateLimitDoor,
    unary,
};
use crate::{
    drain::{self, Calls, Counted},
    panics::{self, Panicked},
};

const INVALID_ARGUMENT: HeaderValue = HeaderValue::from_static("3");
const INTERNAL: &str = "13";
/// How prost begins to say what is wrong with a message.
const UNREADABLE: &[u8] = b"failed%20to%20decode%20Protobuf%20message";
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GET_CURRENT_CONFIG: &str = "/ratelimiter.v1.RateLimiterService/GetCurrentConfig";

/// The body of an answer, of this question or of another.
type Out = http_body_util::Either<unary::Answer, Body>;

#[derive(Clone, Debug)]
pub struct Services {
    rate_limit: Option<Arc<RateLimitDoor>>,
    /// All the others, and the answer for what no service has.
    routes: Routes,
    /// For answers with all rules in them.
    large: Arc<Semaphore>,
}

impl Services {
    #[must_use]
    pub fn new(rate_limit: RateLimitDoor, others: Routes) -> Self {
        Self { rate_limit: Some(Arc::new(rate_limit)), ..others.prepare().into() }
    }

    /// Answers one request of a connection.
    pub fn answer(
        &self,
        calls: &Calls,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Result<Response<Counted<Out>>, Infallible>> {
        let path = request.uri().path();
        let is_rate_limit = path == SHOULD_RATE_LIMIT;
        let is_watch = !is_rate_limit && is_watch(path);
        let call = if is_watch { calls.begin_watch(WATCHES_MAX) } else { calls.begin() };
        let Some(mut call) = call else {
            return std::future::ready(Ok(refused("too many calls are under way, this one was not begun"))).boxed();
        };
        if path == GET_CURRENT_CONFIG {
            let Ok(room) = self.large.clone().try_acquire_owned() else {
                return std::future::ready(Ok(refused("too many are reading all rules already"))).boxed();
            };
            call.hold(room);
        }
        let (head, body) = request.into_parts();
        let body = Intake::new(body, &head.headers, calls.clone(), is_watch);
        if let (Some(rate_limit), true) = (&self.rate_limit, is_rate_limit) {
            let answering = rate_limit.clone().should_rate_limit(&head.headers, body);
            let answering = answering.map(|answer| Ok(answer.map(Out::Left)));
            // At once into its own memory: what carries it from here on would copy all of it several times.
            return drain::answer(call, answering).boxed();
        }
        let request = Request::from_parts(head, Body::new(body));
        let answering = answered(self.routes.clone().oneshot(request));
        drain::answer(call, answering.map_ok(|answer| answer.map(Out::Right))).boxed()
    }
}

/// The answer to one call too many.
fn refused(reason: &str) -> Response<Counted<Out>> {
    Status::unavailable(reason).into_http::<Body>().map(|body| Counted::refusal(Out::Right(body)))
}

impl From<Routes> for Services {
    fn from(routes: Routes) -> Self {
        Self { rate_limit: None, routes, large: Arc::new(Semaphore::new(LARGE_ANSWERS_MAX)) }
    }
}

/// A call that panics is answered, and its connection goes on. Envoy's question has an answer of its own to panics: see
/// [`RateLimitDoor`].
async fn answered(
    answering: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Result<Response<Body>, Infallible> {
    let internal = |Panicked| Ok(Status::internal("sluice has panicked: its log has the place").into_http());
    let answer = panics::caught(answering).await.unwrap_or_else(internal);
    answer.map(|mut response| {
        if is_unreadable(&response) {
            response.headers_mut().insert(Status::GRPC_STATUS, INVALID_ARGUMENT);
        }
        response
    })
}

/// A message that is no protobuf, or holds a text that is not UTF-8, is the caller's fault. tonic calls it our own.
fn is_unreadable(response: &Response<Body>) -> bool {
    let Some(status) = response.headers().get(Status::GRPC_STATUS) else { return false };
    let says = |message: &HeaderValue| message.as_bytes().starts_with(UNREADABLE);
    status == INTERNAL && response.headers().get(Status::GRPC_MESSAGE).is_some_and(says)
}

/// Calls that go on until the caller ends them: nobody waits for these.
fn is_watch(path: &str) -> bool {
    (path.starts_with("/grpc.health.") && path.ends_with("/Watch")) || path.starts_with("/grpc.reflection.")
}
