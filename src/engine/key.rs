//! The only maker of counter keys.
//!
//! ```text
//! <prefix>{<slot tag>}<counter tag>/<entry><entry>...
//!
//!   {edge}f60/2:ip7:1.2.3.4
//!   {edge}b1,b3600/4:user5:alice
//!   {edge}b1@4:gold/6:tenant4:acme
//!   {edge|acme}f60/6:tenant4:acme3:api3*/v*
//!   {edge}b1!/4:user5:alice
//! ```
//!
//! * The slot tag puts all keys of a domain, or of one partition of it, into one cluster slot. Bytes that could open or
//!   close a hash tag, or that separate, are written as `%XX`, so that no caller can choose a slot or leave one.
//! * The counter tag tells counters apart that cannot share a state: `f` fixed window, `s` sliding window, `b` bucket, with
//!   the period in seconds, the tick of a bucket where it is not 1 us, and the plan. `!` marks the built-in default, which
//!   shares no counter with a rule that comes later.
//! * An entry is its key and its value, each with its length in bytes before it, so that no two lists of entries have the
//!   same text. After the length stands `:`, or `*` where the text is the pattern of a glob that shares its counter, or `#`
//!   where the text was longer than 64 bytes and is replaced by half of its SHA-256.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::{
    quota::{Algorithm, Quota},
    request::Entry,
    rule::Counted,
    tree::Step,
};

const LONGEST_TEXT: usize = 64;

/// Where the counters of a descriptor live.
pub struct Place<'a> {
    pub prefix: &'a str,
    pub domain: &'a str,
    pub partition_by: &'a [Box<str>],
    pub entries: &'a [Entry<'a>],
    /// How each entry met its node; empty for a limit that came with the request.
    pub steps: &'a [Step<'a>],
    /// No rule is there; the built-in default counts.
    pub is_default: bool,
}

impl Place<'_> {
    /// Appends the key of one counter.
    pub fn write_key(&self, counted: &Counted, out: &mut String) {
        out.reserve(self.length_hint());
        out.push_str(self.prefix);
        out.push('{');
        self.write_slot_tag(out);
        out.push('}');
        write_counter_tag(&counted.quota, counted.plan.as_deref(), out);
        if self.is_default {
            out.push('!');
        }
        out.push('/');
        for (index, entry) in self.entries.iter().enumerate() {
            write_text(entry.key, ':', out);
            match self.steps.get(index).and_then(Step::shared_pattern) {
                Some(pattern) => write_text(pattern, '*', out),
                None => write_text(entry.value, ':', out),
            }
        }
    }

    /// About as long as a key becomes, so that the buffer grows once.
    fn length_hint(&self) -> usize {
        let entries = self.entries.iter().map(|entry| entry.key.len() + entry.value.len() + 8).sum::<usize>();
        self.prefix.len() + self.domain.len() + entries + 32
    }

    fn write_slot_tag(&self, out: &mut String) {
        write_escaped(self.domain, out);
        for name in self.partition_by {
            if let Some(index) = self.entries.iter().position(|entry| *entry.key == **name) {
                let shared = self.steps.get(index).and_then(Step::shared_pattern);
                let value = shared.unwrap_or(self.entries[index].value);
                out.push('|');
                if value.len() > LONGEST_TEXT { write_hash(value, out) } else { write_escaped(value, out) }
            }
        }
    }
}

fn write_counter_tag(quota: &Quota, plan: Option<&str>, out: &mut String) {
    let letter = match quota.algorithm() {
        Algorithm::FixedWindow => 'f',
        Algorithm::SlidingWindow => 's',
        Algorithm::TokenBucket | Algorithm::LeakyBucket => 'b',
    };
    for (index, rate) in quota.rates().iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push(letter);
        write_number(rate.period().seconds(), out);
        if rate.tick_us() > 1 {
            out.push('x');
            write_number(rate.tick_us(), out);
        }
    }
    if let Some(plan) = plan {
        out.push('@');
        write_text(plan, ':', out);
    }
}

fn write_text(text: &str, mark: char, out: &mut String) {
    if text.len() > LONGEST_TEXT {
        // The mark goes into the hash, so that a pattern and a value of the same text stay apart.
        out.push_str("32#");
        write_hash(&format!("{mark}{text}"), out);
    } else {
        write_number(text.len() as u64, out);
        out.push(mark);
        out.push_str(text);
    }
}

fn write_hash(text: &str, out: &mut String) {
    for byte in &Sha256::digest(text.as_bytes())[..16] {
        let _ = write!(out, "{byte:02x}");
    }
}

fn write_number(number: u64, out: &mut String) {
    match u8::try_from(number) {
        // Nearly all of them: lengths of texts and periods.
        Ok(digit @ 0..=9) => out.push(char::from(b'0' + digit)),
        _ => out.push_str(itoa::Buffer::new().format(number)),
    }
}

fn write_escaped(text: &str, out: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/@".contains(&byte);
    if text.bytes().all(is_plain) {
        return out.push_str(text);
    }
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// CRC-16/XMODEM of each byte.
const CRC_OF_BYTE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// The cluster slot of a key: CRC-16/XMODEM of its hash tag, modulo 16384.
#[must_use]
pub fn slot(key: &str) -> u16 {
    let bytes = key.as_bytes();
    let tag = bytes.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &bytes[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then_some(&rest[..close])
    });
    let crc = tag.unwrap_or(bytes).iter().fold(0_u16, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ CRC_OF_BYTE[usize::from(high ^ byte)]
    });
    crc % 16_384
}
