//! Stands between sluice and a server. It can delay or hold back what the server says, or swallow what both say, and it notes
//! when connections begin and end.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

pub struct Proxy {
    port: u16,
    weather: Arc<Weather>,
}

struct Weather {
    server: Mutex<String>,
    delay_us: AtomicU64,
    /// Replies that have come since they are held back, and how many of them may go on, in the order in which they came.
    came: AtomicU64,
    may_go: AtomicU64,
    swallows: AtomicBool,
    connections: Mutex<Vec<Connection>>,
}

struct Connection {
    began: Instant,
    /// When sluice ended it.
    ended: Option<Instant>,
}

impl Proxy {
    pub fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let weather = Arc::new(Weather {
            server: Mutex::new(server.to_owned()),
            delay_us: AtomicU64::new(0),
            came: AtomicU64::new(0),
            may_go: AtomicU64::new(u64::MAX),
            swallows: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let shared = weather.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let address = shared.server.lock().unwrap().clone();
                let Ok(server) = TcpStream::connect(address) else { continue };
                connect(client, server, &shared);
            }
        });
        Self { port, weather }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Connections from now on lead to another server; those that are open stay where they are.
    pub fn lead_to(&self, server: &str) {
        server.clone_into(&mut self.weather.server.lock().unwrap());
    }

    /// From now on every reply comes so much later.
    pub fn set_delay(&self, delay: Duration) {
        self.weather.delay_us.store(u64::try_from(delay.as_micros()).unwrap(), Ordering::Relaxed);
    }

    /// From now on no reply goes on.
    pub fn hold(&self) {
        self.weather.came.store(0, Ordering::SeqCst);
        self.weather.may_go.store(0, Ordering::SeqCst);
    }

    /// How many replies have come since then.
    pub fn came(&self) -> u64 {
        self.weather.came.load(Ordering::SeqCst)
    }

    /// So many of them go on, and no other.
    pub fn let_go(&self, replies: u64) {
        self.weather.may_go.store(replies, Ordering::SeqCst);
    }

    /// From now on nothing arrives on either side. A connection that has lost something carries nothing any more, even
    /// when this ends.
    pub fn swallow(&self, swallows: bool) {
        self.weather.swallows.store(swallows, Ordering::Relaxed);
    }

    /// When the last of the connections that had begun before this was ended by sluice, if all of them were.
    pub fn ended(&self, began_before: Instant) -> Option<Instant> {
        let connections = self.weather.connections.lock().unwrap();
        let old = connections.iter().filter(|connection| connection.began < began_before);
        let ended: Option<Vec<Instant>> = old.map(|connection| connection.ended).collect();
        ended?.into_iter().max()
    }
}

fn connect(client: TcpStream, server: TcpStream, weather: &Arc<Weather>) {
    let _ = client.set_nodelay(true);
    let number = {
        let mut connections = weather.connections.lock().unwrap();
        connections.push(Connection { began: Instant::now(), ended: None });
        connections.len() - 1
    };
    let (there, back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let lost = Arc::new(AtomicBool::new(false));
    let (its_weather, its_lost) = (weather.clone(), lost.clone());
    thread::spawn(move || {
        pass_on(there, server, &its_weather, &its_lost, false);
        its_weather.connections.lock().unwrap()[number].ended = Some(Instant::now());
    });
    let weather = weather.clone();
    thread::spawn(move || pass_on(back, client, &weather, &lost, true));
}

/// A thread reads, this one writes when it is time: what comes later does not wait for what came before twice.
fn pass_on(mut from: TcpStream, mut to: TcpStream, weather: &Arc<Weather>, lost: &Arc<AtomicBool>, is_late: bool) {
    let _ = to.set_nodelay(true);
    let (sender, receiver) = mpsc::channel::<(Instant, u64, Vec<u8>)>();
    let (its_weather, lost) = (weather.clone(), lost.clone());
    let reader = thread::spawn(move || {
        let mut bytes = [0; 16_384];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if its_weather.swallows.load(Ordering::Relaxed) {
                lost.store(true, Ordering::Relaxed);
            }
            if lost.load(Ordering::Relaxed) {
                continue;
            }
            let delay_us = if is_late { its_weather.delay_us.load(Ordering::Relaxed) } else { 0 };
            let due = Instant::now() + Duration::from_micros(delay_us);
            let number = if is_late { its_weather.came.fetch_add(1, Ordering::SeqCst) } else { 0 };
            if sender.send((due, number, bytes[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    for (due, number, bytes) in receiver {
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            thread::park_timeout(left);
        }
        while is_late && number >= weather.may_go.load(Ordering::SeqCst) {
            thread::park_timeout(Duration::from_millis(1));
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = reader.join();
}
