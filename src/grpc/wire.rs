//! Reads Envoy's question from its bytes without copying any text.
//!
//! prost would allocate a string for every key and value and a list for every descriptor, to be freed a few microseconds later.
//! Here all text stays where it arrived. What is accepted and what it means is protobuf's and prost's: of a field that
//! comes twice the last counts, messages that come twice are merged, unknown fields are passed over. A property test holds the
//! two to each other. Knows nothing of rules, and not whether a question makes sense.

use smallvec::SmallVec;

use super::proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::RateLimitRequest,
};
use crate::engine::request::{DESCRIPTORS_MAX, ENTRIES_MAX, Entry, Excess, Part, USUAL};

/// `RateLimitRequest`, borrowed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question<'a> {
    pub domain: &'a str,
    pub descriptors: SmallVec<[Asked<'a>; USUAL]>,
    pub hits_addend: u32,
}

/// `RateLimitDescriptor`, borrowed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked<'a> {
    pub entries: SmallVec<[Entry<'a>; 3]>,
    pub limit: Option<RateLimitOverride>,
    pub hits_addend: Option<u64>,
    pub is_negative_hits: bool,
}

impl<'a> From<&'a RateLimitRequest> for Question<'a> {
    fn from(owned: &'a RateLimitRequest) -> Self {
        let descriptors = owned.descriptors.iter().map(|descriptor| Asked {
            entries: descriptor.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect(),
            limit: descriptor.limit,
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.is_negative_hits,
        });
        Self { domain: &owned.domain, descriptors: descriptors.collect(), hits_addend: owned.hits_addend }
    }
}

/// Why bytes are no `RateLimitRequest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("failed to decode Protobuf message: it ends in the middle of a field")]
    TooShort,
    #[error("failed to decode Protobuf message: a number takes more than 64 bits")]
    LongNumber,
    #[error("failed to decode Protobuf message: a field has a number or a type that protobuf does not know")]
    BadTag,
    #[error("failed to decode Protobuf message: its field {0} has another type")]
    WrongType(u32),
    #[error("failed to decode Protobuf message: a text is not valid UTF-8")]
    NotUtf8,
    #[error("failed to decode Protobuf message: groups are nested more than {GROUPS_MAX} deep")]
    TooDeep,
    /// An empty descriptor has two bytes on the wire and a hundred once it is read.
    #[error("{0}")]
    TooMany(Excess),
}

/// Reads a whole message.
pub fn read(message: &[u8]) -> Result<Question<'_>, Unreadable> {
    let mut question = Question::default();
    let mut bytes = Bytes(message);
    while let Some(field) = bytes.field()? {
        match field.number {
            1 => question.domain = bytes.text(field)?,
            2 if question.descriptors.len() < DESCRIPTORS_MAX => {
                let index = question.descriptors.len();
                question.descriptors.push(read_descriptor(bytes.message(field)?, index)?);
            }
            2 => return Err(bytes.too_many(field, Part::Descriptors, DESCRIPTORS_MAX)),
            3 => question.hits_addend = low_half(bytes.number(field)?),
            _ => bytes.skip(field, GROUPS_MAX)?,
        }
    }
    Ok(question)
}

fn read_descriptor(mut bytes: Bytes<'_>, index: usize) -> Result<Asked<'_>, Unreadable> {
    let mut asked = Asked::default();
    while let Some(field) = bytes.field()? {
        match field.number {
            1 if asked.entries.len() < ENTRIES_MAX => asked.entries.push(read_entry(bytes.message(field)?)?),
            1 => return Err(bytes.too_many(field, Part::Entries { descriptor: index }, ENTRIES_MAX)),
            2 => read_limit(bytes.message(field)?, asked.limit.get_or_insert_default())?,
            3 => read_wrapped(bytes.message(field)?, asked.hits_addend.get_or_insert_default(), |hits| hits)?,
            4 => asked.is_negative_hits = bytes.number(field)? != 0,
            _ => bytes.skip(field, GROUPS_MAX)?,
        }
    }
    Ok(asked)
}

fn read_entry(mut bytes: Bytes<'_>) -> Result<Entry<'_>, Unreadable> {
    let mut entry = Entry { key: "", value: "" };
    while let Some(field) = bytes.field()? {
        match field.number {
            1 => entry.key = bytes.text(field)?,
            2 => entry.value = bytes.text(field)?,
            _ => bytes.skip(field, GROUPS_MAX)?,
        }
    }
    Ok(entry)
}

fn read_limit(mut bytes: Bytes<'_>, limit: &mut RateLimitOverride) -> Result<(), Unreadable> {
    while let Some(field) = bytes.field()? {
        match field.number {
            1 => limit.requests_per_unit = low_half(bytes.number(field)?),
            2 => limit.unit = low_half(bytes.number(field)?).cast_signed(),
            3 => read_wrapped(bytes.message(field)?, limit.unit_multiplier.get_or_insert_default(), low_half)?,
            _ => bytes.skip(field, GROUPS_MAX)?,
        }
    }
    Ok(())
}

/// `google.protobuf.UInt32Value` and its like: a message around a number.
fn read_wrapped<N>(mut bytes: Bytes<'_>, into: &mut N, narrow: fn(u64) -> N) -> Result<(), Unreadable> {
    while let Some(field) = bytes.field()? {
        match field.number {
            1 => *into = narrow(bytes.number(field)?),
            _ => bytes.skip(field, GROUPS_MAX)?,
        }
    }
    Ok(())
}

/// What protobuf makes of a number that is too large for its field.
#[expect(clippy::cast_possible_truncation, reason = "it is the definition")]
fn low_half(number: u64) -> u32 {
    number as u32
}

/// As prost has it. Nobody sends groups any more.
const GROUPS_MAX: u32 = 99;

const NUMBER: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const LENGTH: u8 = 2;
const GROUP_BEGINS: u8 = 3;
const GROUP_ENDS: u8 = 4;
const FOUR_BYTES: u8 = 5;

#[derive(Clone, Copy)]
struct Field {
    number: u32,
    kind: u8,
}

/// What is left of a message.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// The next field's number and type, if there is one.
    fn field(&mut self) -> Result<Option<Field>, Unreadable> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| Unreadable::BadTag)?;
        let field = Field { number: tag >> 3, kind: (tag & 7) as u8 };
        if field.number == 0 || field.kind > FOUR_BYTES { Err(Unreadable::BadTag) } else { Ok(Some(field)) }
    }

    fn varint(&mut self) -> Result<u64, Unreadable> {
        // Nearly all are small.
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        let mut number = 0;
        for (index, byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                self.0 = &self.0[index + 1..];
                return if index == 9 && *byte > 1 { Err(Unreadable::LongNumber) } else { Ok(number) };
            }
        }
        Err(if self.0.len() < 10 { Unreadable::TooShort } else { Unreadable::LongNumber })
    }

    fn number(&mut self, field: Field) -> Result<u64, Unreadable> {
        if field.kind == NUMBER { self.varint() } else { Err(Unreadable::WrongType(field.number)) }
    }

    fn message(&mut self, field: Field) -> Result<Bytes<'a>, Unreadable> {
        if field.kind != LENGTH {
            return Err(Unreadable::WrongType(field.number));
        }
        let length = usize::try_from(self.varint()?).map_err(|_| Unreadable::TooShort)?;
        self.take(length).map(Bytes)
    }

    fn text(&mut self, field: Field) -> Result<&'a str, Unreadable> {
        std::str::from_utf8(self.message(field)?.0).map_err(|_| Unreadable::NotUtf8)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Unreadable::TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Says how many of a field there are, if `max` were read and this is one more.
    fn too_many(mut self, one_more: Field, part: Part, max: usize) -> Unreadable {
        let (mut size, mut next) = (max, Some(one_more));
        while let Some(field) = next {
            size += usize::from(field.number == one_more.number);
            if let Err(unreadable) = self.skip(field, GROUPS_MAX) {
                return unreadable;
            }
            next = match self.field() {
                Ok(next) => next,
                Err(unreadable) => return unreadable,
            };
        }
        Unreadable::TooMany(Excess { part, size, max })
    }

    /// Passes over a field that we do not know.
    fn skip(&mut self, field: Field, groups: u32) -> Result<(), Unreadable> {
        match field.kind {
            NUMBER => self.varint().map(drop),
            EIGHT_BYTES => self.take(8).map(drop),
            FOUR_BYTES => self.take(4).map(drop),
            LENGTH => self.message(field).map(drop),
            GROUP_BEGINS => loop {
                let inner = self.field()?.ok_or(Unreadable::TooShort)?;
                if inner.kind == GROUP_ENDS {
                    return if inner.number == field.number { Ok(()) } else { Err(Unreadable::BadTag) };
                }
                self.skip(inner, groups.checked_sub(1).ok_or(Unreadable::TooDeep)?)?;
            },
            _ => Err(Unreadable::BadTag),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::grpc::proto::envoy::extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::Entry as OwnedEntry,
    };

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[a-c]{0,3}", "\\PC{0,12}", "[a-z]{120,300}"]
    }

    prop_compose! {
        fn limit()(
            requests_per_unit: u32,
            unit: i32,
            unit_multiplier: Option<u32>,
        ) -> RateLimitOverride {
            RateLimitOverride { requests_per_unit, unit, unit_multiplier }
        }
    }

    prop_compose! {
        fn descriptor()(
            entries in prop::collection::vec((text(), text()), 0..5),
            limit in prop::option::of(limit()),
            hits_addend: Option<u64>,
            is_negative_hits: bool,
        ) -> RateLimitDescriptor {
            let entries = entries.into_iter().map(|(key, value)| OwnedEntry { key, value }).collect();
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        }
    }

    prop_compose! {
        fn request()(
            domain in text(),
            descriptors in prop::collection::vec(descriptor(), 0..4),
            hits_addend: u32,
        ) -> RateLimitRequest {
            RateLimitRequest { domain, descriptors, hits_addend }
        }
    }

    /// Bytes that are nearly a message: several glued together, some of them changed, cut off or put in.
    fn nearly() -> impl Strategy<Value = Vec<u8>> {
        let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 0..4);
        (prop::collection::vec(request(), 1..3), changes).prop_map(|(requests, changes)| {
            let mut bytes: Vec<u8> = requests.iter().flat_map(prost::Message::encode_to_vec).collect();
            for (place, byte, how) in changes {
                let place = place.index(bytes.len() + 1);
                match how {
                    0 => bytes.insert(place, byte),
                    1 if place < bytes.len() => bytes[place] = byte,
                    _ => bytes.truncate(place),
                }
            }
            bytes
        })
    }

    fn agrees(bytes: &[u8]) -> Result<(), TestCaseError> {
        let theirs = RateLimitRequest::decode(bytes);
        let (ours, expected) = (read(bytes).ok(), theirs.as_ref().ok().map(Question::from));
        prop_assert_eq!(ours, expected, "{:?}", bytes);
        Ok(())
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_prost_reads_it(request in request()) {
            let bytes = request.encode_to_vec();
            prop_assert_eq!(read(&bytes).unwrap(), Question::from(&request));
        }

        #[test]
        fn what_is_nearly_a_message_is_read_or_refused_as_prost_does(bytes in nearly()) {
            agrees(&bytes)?;
        }

        #[test]
        fn any_bytes_are_read_or_refused_as_prost_does(bytes in prop::collection::vec(0_u8..40, 0..40)) {
            agrees(&bytes)?;
        }
    }

    #[test]
    fn more_descriptors_or_entries_than_can_be_are_counted_and_not_kept() {
        let entry = OwnedEntry { key: "k".to_owned(), value: "v".to_owned() };
        let says = |descriptors: usize, entries: usize| {
            let descriptor = RateLimitDescriptor { entries: vec![entry.clone(); entries], ..Default::default() };
            let descriptors = vec![descriptor; descriptors];
            let request = RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 1 };
            read(&request.encode_to_vec()).err().map(|unreadable| unreadable.to_string())
        };
        assert_eq!(says(DESCRIPTORS_MAX, ENTRIES_MAX), None);
        let descriptors = says(DESCRIPTORS_MAX + 7, 1).unwrap();
        assert_eq!(descriptors, "263 descriptors in one request, at most 256 are possible: see `descriptors`");
        assert_eq!(says(3, ENTRIES_MAX + 2).unwrap(), "descriptors[0] has 66 entries, at most 64 are possible");
    }

    #[test]
    fn what_nobody_sends_is_read_as_prost_reads_it() {
        let group = |depth: usize| [vec![0x7b; depth], vec![0x7c; depth]].concat();
        let cases = [
            vec![],
            // Numbers of ten bytes: the largest, and one that is larger.
            [&[0x18][..], &[0xff; 9], &[0x01]].concat(),
            [&[0x18][..], &[0xff; 9], &[0x02]].concat(),
            [&[0x18][..], &[0xff; 10], &[0x01]].concat(),
            // Groups, unknown and with another end.
            group(1),
            group(3),
            group(99),
            group(100),
            group(101),
            group(5_000),
            vec![0x7b, 0x84, 0x01],
            vec![0x7c],
            // Field 0, types 6 and 7, and a tag of more than 32 bits.
            vec![0x00, 0x00],
            vec![0x7e],
            vec![0x7f],
            vec![0xf8, 0xff, 0xff, 0xff, 0xff, 0x01, 0x00],
            // Known fields of another type.
            vec![0x08, 0x01],
            vec![0x10, 0x01],
            vec![0x1a, 0x00],
            // Unknown ones of each type.
            vec![0x78, 0x96, 0x01],
            vec![0x79, 1, 2, 3, 4, 5, 6, 7, 8],
            vec![0x7a, 0x01, 0xff],
            vec![0x7d, 1, 2, 3, 4],
            vec![0x7d, 1, 2, 3],
            // A text that is no text.
            vec![0x0a, 0x01, 0xff],
            // A limit in two parts, and a wrapper in two parts.
            vec![0x12, 0x08, 0x12, 0x02, 0x08, 0x07, 0x12, 0x02, 0x10, 0x03],
            vec![0x12, 0x06, 0x1a, 0x02, 0x08, 0x07, 0x1a, 0x00],
        ];
        for bytes in cases {
            agrees(&bytes).unwrap();
        }
    }
}
