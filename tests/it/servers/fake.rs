//! A server that speaks RESP and answers calls as a test tells it to, for the answers that a real one gives only on bad days.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// What a call of the script is answered.
#[derive(Clone, Debug)]
pub enum Said {
    /// Admitted, with nothing used before.
    Admitted,
    /// These bytes, as they are.
    Bytes(String),
    /// These bytes, and then the connection ends.
    BytesAndEnd(String),
    /// Nothing, ever.
    Silence,
}

impl Said {
    /// An error reply.
    pub fn error(text: &str) -> Self {
        Self::Bytes(format!("-{text}\r\n"))
    }
}

#[derive(Debug, Default)]
struct State {
    /// For calls that are not the probe's, in order; then all are admitted.
    next: VecDeque<Said>,
    /// For every call of the probe, if not the usual.
    probe: Option<Said>,
    /// For the login and everything else, if not the usual.
    greeting: Option<String>,
    /// For TIME, if not the usual.
    time: Option<String>,
    /// For GET, in order; then nothing is there.
    gets: VecDeque<String>,
    /// For SENTINEL: whom it calls the primary, and a replica.
    watched: Option<(String, String)>,
    /// Whoever dials now is never answered.
    is_deaf: bool,
    slots_asked: usize,
    by_name: usize,
    by_text: usize,
    asking: usize,
    connections: usize,
    open: usize,
}

pub struct Fake {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Fake {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                {
                    let mut state = shared.lock().unwrap();
                    state.connections += 1;
                    state.open += 1;
                }
                let (shared, is_deaf) = (shared.clone(), shared.lock().unwrap().is_deaf);
                thread::spawn(move || {
                    if is_deaf {
                        let _ = std::io::copy(&mut &client, &mut std::io::sink());
                    } else {
                        serve(client, &shared);
                    }
                    shared.lock().unwrap().open -= 1;
                });
            }
        });
        Self { port, state }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn answer_next(&self, said: impl IntoIterator<Item = Said>) {
        self.state.lock().unwrap().next.extend(said);
    }

    /// What its clock shows, in seconds.
    pub fn show_time(&self, seconds: &str) {
        let time = format!("*2\r\n${}\r\n{seconds}\r\n$1\r\n0\r\n", seconds.len());
        self.state.lock().unwrap().time = Some(time);
    }

    /// What GET is answered next, as bytes of the protocol.
    pub fn answer_get(&self, reply: &str) {
        self.state.lock().unwrap().gets.push_back(reply.to_owned());
    }

    /// From now on connections are accepted and never answered. Those that are open go on.
    pub fn be_deaf(&self, is_deaf: bool) {
        self.state.lock().unwrap().is_deaf = is_deaf;
    }

    /// Is a sentinel, who calls one the primary and another its replica.
    pub fn watch(&self, primary: &str, replica: &str) {
        self.state.lock().unwrap().watched = Some((primary.to_owned(), replica.to_owned()));
    }

    /// How often it was asked who serves which slot.
    pub fn slots_asked(&self) -> usize {
        self.state.lock().unwrap().slots_asked
    }

    pub fn answer_probes(&self, said: Option<Said>) {
        self.state.lock().unwrap().probe = said;
    }

    /// EVALSHA and EVAL, without those of the probe.
    pub fn calls(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.by_name, state.by_text)
    }

    pub fn asking(&self) -> usize {
        self.state.lock().unwrap().asking
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.state.lock().unwrap().open
    }

    /// How often it was dialled.
    pub fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }
}

fn serve(client: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut writer = client.try_clone().ok()?;
    let mut reader = BufReader::new(client);
    loop {
        let words = read_command(&mut reader)?;
        let said = answer(&words, state);
        match said {
            // Some time, and a key that was absent.
            Said::Admitted => {
                writer.write_all(b"$8\r\n\x01\x02\x03\x04\x05\x06\x07\0\r\n").ok()?;
            }
            Said::Bytes(bytes) => writer.write_all(bytes.as_bytes()).ok()?,
            Said::BytesAndEnd(bytes) => {
                writer.write_all(bytes.as_bytes()).ok()?;
                writer.shutdown(std::net::Shutdown::Both).ok()?;
                return None;
            }
            Said::Silence => {}
        }
    }
}

fn answer(words: &[Vec<u8>], state: &Mutex<State>) -> Said {
    let ok = || Said::Bytes("+OK\r\n".to_owned());
    let mut state = state.lock().unwrap();
    let name = words[0].to_ascii_uppercase();
    match &name[..] {
        b"EVALSHA" | b"EVAL" => {
            if words.get(3).is_some_and(|key| key.ends_with(b"}canary")) {
                return state.probe.clone().unwrap_or(Said::Admitted);
            }
            *(if name == b"EVALSHA" { &mut state.by_name } else { &mut state.by_text }) += 1;
            state.next.pop_front().unwrap_or(Said::Admitted)
        }
        b"ASKING" => {
            state.asking += 1;
            ok()
        }
        b"TIME" if state.time.is_some() => Said::Bytes(state.time.clone().unwrap_or_default()),
        b"GET" => Said::Bytes(state.gets.pop_front().unwrap_or_else(|| "$-1\r\n".to_owned())),
        b"CLUSTER" => {
            state.slots_asked += 1;
            Said::Bytes(state.greeting.clone().unwrap_or_default())
        }
        b"SENTINEL" => {
            let (primary, replica) = state.watched.clone().unwrap_or_default();
            let names = |words: &[&str]| {
                let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
                format!("*{}\r\n{}", words.len(), words.collect::<String>())
            };
            let at = |address: &str| address.rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned()));
            let ((host, port), (its_host, its_port)) = at(&primary).zip(at(&replica)).unwrap_or_default();
            Said::Bytes(if words[1].eq_ignore_ascii_case(b"replicas") {
                format!("*1\r\n{}", names(&["ip", &its_host, "port", &its_port, "flags", "slave"]))
            } else {
                names(&[&host, &port])
            })
        }
        _ => ok(),
    }
}

impl Fake {
    /// Its answer to CLUSTER SLOTS: these ranges and the ports that serve them.
    pub fn serve_slots(&self, ranges: &[(u16, u16, &str)]) {
        let mut reply = format!("*{}\r\n", ranges.len());
        for (first, last, address) in ranges {
            let (host, port) = address.rsplit_once(':').unwrap();
            reply += &format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:{port}\r\n", host.len());
        }
        self.state.lock().unwrap().greeting = Some(reply);
    }
}

fn read_command(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let count = read_number(reader, '*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut bytes = vec![0; read_number(reader, '$')? + 2];
        reader.read_exact(&mut bytes).ok()?;
        bytes.truncate(bytes.len() - 2);
        words.push(bytes);
    }
    Some(words)
}

fn read_number(reader: &mut impl BufRead, mark: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}
