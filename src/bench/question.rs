//! What is asked: one request, or many that differ in a key, encoded before the clock runs.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use crate::grpc::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::RateLimitRequest,
};

/// All of them are encoded at the start: a hundred bytes each.
pub const KEYS_MAX: u64 = 2_000_000;
/// Stands for the number of the key.
const PLACE: &str = "{N}";

#[derive(Clone, Debug)]
pub struct Question {
    pub domain: String,
    /// The entries of each descriptor.
    pub descriptors: Vec<Vec<(String, String)>>,
    pub hits: u32,
    /// How many numbers take the place of `{N}`.
    pub keys: u64,
    /// 0 asks for all keys alike; 1 asks for the second half as often as for the first, and so on.
    pub zipf: f64,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadQuestion {
    #[error("--keys {0} has no place to go: write {PLACE} into a value, as in --descriptor user=u{PLACE}")]
    NoPlace(u64),
    #[error("--keys {0} is out of range: use 1 to {KEYS_MAX}")]
    Keys(u64),
    #[error("--zipf {0} is out of range: use 0 (all keys alike) to 10")]
    Zipf(f64),
}

/// All bodies, one after the other.
#[derive(Debug)]
pub struct Questions {
    bodies: Vec<Bytes>,
    pub descriptors: usize,
    zipf: Zipf,
}

impl Questions {
    pub fn prepare(question: &Question) -> Result<Self, BadQuestion> {
        if !(1..=KEYS_MAX).contains(&question.keys) {
            return Err(BadQuestion::Keys(question.keys));
        }
        if !(0.0..=10.0).contains(&question.zipf) {
            return Err(BadQuestion::Zipf(question.zipf));
        }
        let has_place = question.descriptors.iter().flatten().any(|(_, value)| value.contains(PLACE));
        if question.keys > 1 && !has_place {
            return Err(BadQuestion::NoPlace(question.keys));
        }
        let mut all = BytesMut::new();
        let ends: Vec<usize> = (0..question.keys)
            .map(|number| {
                encode(&request(question, number), &mut all);
                all.len()
            })
            .collect();
        let all = all.freeze();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let bodies = starts.zip(&ends).map(|(start, end)| all.slice(start..*end)).collect();
        Ok(Self { bodies, descriptors: question.descriptors.len(), zipf: Zipf::new(question.keys, question.zipf) })
    }

    /// The next body: a gRPC frame.
    pub fn next(&self, random: &mut fastrand::Rng) -> Bytes {
        if let [only] = &self.bodies[..] {
            return only.clone();
        }
        self.bodies[self.zipf.draw(random)].clone()
    }
}

fn request(question: &Question, number: u64) -> RateLimitRequest {
    let number = number.to_string();
    let entry = |(key, value): &(String, String)| Entry { key: key.clone(), value: value.replace(PLACE, &number) };
    let descriptor = |entries: &Vec<(String, String)>| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: question.domain.clone(),
        descriptors: question.descriptors.iter().map(descriptor).collect(),
        hits_addend: question.hits,
    }
}

/// Not compressed, its length, the message.
pub fn encode(request: &RateLimitRequest, out: &mut BytesMut) {
    out.put_u8(0);
    out.put_u32(u32::try_from(request.encoded_len()).unwrap_or(u32::MAX));
    request.encode(out).expect("a growing buffer has room");
}

/// Draws numbers below `keys` so that the i-th is drawn in proportion to 1/(i+1)^s, by rejection inversion (Hoermann and
/// Derflinger): no table, a little more than one try on average.
#[derive(Debug)]
struct Zipf {
    keys: f64,
    skew: f64,
    low: f64,
    high: f64,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers below two million"
)]
impl Zipf {
    fn new(keys: u64, skew: f64) -> Self {
        let mut zipf = Self { keys: keys as f64, skew, low: 0.0, high: 0.0 };
        (zipf.low, zipf.high) = (zipf.area(0.5), zipf.area(zipf.keys + 0.5));
        zipf
    }

    fn draw(&self, random: &mut fastrand::Rng) -> usize {
        loop {
            let point = self.low + random.f64() * (self.high - self.low);
            let rank = self.at(point).round().clamp(1.0, self.keys);
            if point >= self.area(rank + 0.5) - rank.powf(-self.skew) {
                return rank as usize - 1;
            }
        }
    }

    /// The integral of x^-s, up to a constant.
    fn area(&self, x: f64) -> f64 {
        if (self.skew - 1.0).abs() < 1e-9 { x.ln() } else { x.powf(1.0 - self.skew) / (1.0 - self.skew) }
    }

    /// Where the integral has this value.
    fn at(&self, area: f64) -> f64 {
        if (self.skew - 1.0).abs() < 1e-9 {
            area.exp()
        } else {
            (area * (1.0 - self.skew)).powf(1.0 / (1.0 - self.skew))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(keys: u64, value: &str) -> Question {
        let entries = vec![("user".to_owned(), value.to_owned())];
        Question { domain: "edge".to_owned(), descriptors: vec![entries], hits: 0, keys, zipf: 0.0 }
    }

    #[test]
    fn the_number_of_the_key_stands_in_the_value() {
        let questions = Questions::prepare(&question(12, "u{N}-{N}")).unwrap();
        let request = RateLimitRequest::decode(&questions.bodies[11][5..]).unwrap();
        assert_eq!(request.descriptors[0].entries[0].value, "u11-11");
        assert_eq!(u32::from_be_bytes(questions.bodies[11][1..5].try_into().unwrap()) as usize, request.encoded_len());
    }

    #[test]
    fn keys_without_a_place_are_refused() {
        assert_eq!(Questions::prepare(&question(2, "alice")).unwrap_err(), BadQuestion::NoPlace(2));
        assert_eq!(Questions::prepare(&question(0, "u{N}")).unwrap_err(), BadQuestion::Keys(0));
    }

    /// How often each of ten keys is drawn, of 100,000 times.
    fn drawn(skew: f64) -> [u32; 10] {
        let (zipf, mut random) = (Zipf::new(10, skew), fastrand::Rng::with_seed(7));
        let mut counts = [0; 10];
        (0..100_000).for_each(|_| counts[zipf.draw(&mut random)] += 1);
        counts
    }

    #[test]
    fn keys_are_drawn_by_their_rank() {
        let even = drawn(0.0);
        assert!(even.iter().all(|count| (9_500..10_500).contains(count)), "{even:?}");
        // 1 + 1/2 + ... + 1/10 = 2.929
        let skewed = drawn(1.0);
        assert!((33_500..34_800).contains(&skewed[0]), "{skewed:?}");
        assert!((16_500..17_600).contains(&skewed[1]), "{skewed:?}");
        assert!((3_100..3_700).contains(&skewed[9]), "{skewed:?}");
        let steep = drawn(2.0);
        // 1 + 1/4 + ... + 1/100 = 1.5498
        assert!((63_900..65_200).contains(&steep[0]), "{steep:?}");
    }
}
