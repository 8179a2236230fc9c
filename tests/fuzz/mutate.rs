//! Makes new inputs from those that are there: what fuzzers do, without the coverage that guides them.

use fastrand::Rng;

const LENGTH_MAX: usize = 16 << 10;

/// Pieces that mean something in one of the languages that are read.
const PIECES: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"'",
    b": ",
    b", ",
    b"- ",
    b"|\n ",
    b">-\n",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!str ",
    b"%YAML 1.2\n---\n",
    b"---\n",
    b"...\n",
    b"#",
    b"\t",
    b"null",
    b"~",
    b"true",
    b"1e999",
    b"-1",
    b"0",
    b"18446744073709551616",
    b"4294967296",
    b"9007199254740993",
    b"0x7f",
    b".inf",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"\xe2\x80\xa8",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x92\xa9",
    b"*-1\r\n",
    b"$-1\r\n",
    b"*2147483647\r\n",
    b"$9223372036854775807\r\n",
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":1\r\n",
    b"%1\r\n",
    b"~1\r\n",
    b"_\r\n",
    b",nan\r\n",
    b"(1\r\n",
    b"#t\r\n",
    b"=15\r\ntxt:\r\n",
    b"descriptors:\n",
    b"key: a\n",
    b"value: \"*\"\n",
    b"rate_limit: {unit: second, requests_per_unit: 1}\n",
    b"unit_multiplier: 4294967295\n",
    b"domain: d\n",
    b"burst: 1",
    b"plans: {p: {",
    b"rates: [",
    b"hitsAddend",
    b"isNegativeHits",
    b"redis://",
    b"rediss://u:p@",
    b"unix:///",
    b"@",
    b"%zz",
    b"host:1,",
    b"100/second burst 2",
];

/// An input that is near to some of these.
pub fn mutated(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = rng.choice(corpus).cloned().unwrap_or_default();
    for _ in 0..rng.usize(1..=6) {
        mutate(rng, &mut bytes, corpus);
    }
    bytes.truncate(LENGTH_MAX);
    bytes
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = rng.usize(..=bytes.len());
    let end = at + rng.usize(..=(bytes.len() - at).min(40));
    match rng.u8(..9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.u8(..8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.u8(..);
            }
        }
        2 => drop(bytes.drain(at..end)),
        3 => {
            let most = if rng.u8(..50) == 0 { 400 } else { 3 };
            let again = bytes[at..end].repeat(rng.usize(1..=most));
            bytes.splice(at..at, again);
        }
        4 => {
            let random: Vec<u8> = (0..rng.usize(1..=8)).map(|_| rng.u8(..)).collect();
            bytes.splice(at..at, random);
        }
        5 | 6 => drop(bytes.splice(at..end, rng.choice(PIECES).copied().unwrap_or_default().iter().copied())),
        7 => {
            let other = rng.choice(corpus).cloned().unwrap_or_default();
            let from = rng.usize(..=other.len());
            bytes.splice(at..end, other[from..].iter().copied().take(rng.usize(..=80)));
        }
        _ => bytes.truncate(at),
    }
}
