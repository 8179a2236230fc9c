//! Stands between sluice and a server, and can hold back what the server says.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

pub struct Proxy {
    port: u16,
    server: Arc<Mutex<String>>,
    delay_us: Arc<AtomicU64>,
}

impl Proxy {
    pub fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let delay_us = Arc::new(AtomicU64::new(0));
        let server = Arc::new(Mutex::new(server.to_owned()));
        let (leads_to, delay) = (server.clone(), delay_us.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let address = leads_to.lock().unwrap().clone();
                let Ok(upstream) = TcpStream::connect(address) else { continue };
                let _ = client.set_nodelay(true);
                let (there, back) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                let none = Arc::new(AtomicU64::new(0));
                thread::spawn(move || pass_on(there, upstream, &none));
                let delay = delay.clone();
                thread::spawn(move || pass_on(back, client, &delay));
            }
        });
        Self { port, server, delay_us }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Connections from now on lead to another server; those that are open stay where they are.
    pub fn lead_to(&self, server: &str) {
        server.clone_into(&mut self.server.lock().unwrap());
    }

    /// From now on every reply comes so much later.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_us.store(u64::try_from(delay.as_micros()).unwrap(), Ordering::Relaxed);
    }
}

/// A thread reads, this one writes when it is time: what comes later does not wait for what came before twice.
fn pass_on(mut from: TcpStream, mut to: TcpStream, delay_us: &Arc<AtomicU64>) {
    let _ = to.set_nodelay(true);
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    let delay_us = delay_us.clone();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 16_384];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let due = Instant::now() + Duration::from_micros(delay_us.load(Ordering::Relaxed));
            if sender.send((due, bytes[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    for (due, bytes) in receiver {
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            thread::park_timeout(left);
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = reader.join();
}
