//! The calls that a node is tried with: on keys of the doctor's own, which are gone a second later.

use std::ops::RangeInclusive;

use redis::{Cmd, Value, cmd};

use crate::store::redis::{canary, fault::Fault, lane::Ask, script};

/// How long what is set here stays.
const TTL_MS: u32 = 1_000;

#[derive(Debug)]
pub struct Canary {
    ask: Ask,
    /// Not the script's key, which takes no value but the script's own.
    key: String,
}

impl Canary {
    /// Keys of one of these slots.
    pub fn new(prefix: &str, slots: &RangeInclusive<u16>) -> Self {
        Self {
            ask: canary::ask(&canary::key_in(prefix, slots, "doctor")),
            key: canary::key_in(prefix, slots, "doctor-set"),
        }
    }

    /// The script, by its name.
    pub fn evalsha(&self) -> Cmd {
        self.call("EVALSHA", script::SHA1.as_str())
    }

    /// The script, by its text.
    pub fn eval(&self) -> Cmd {
        self.call("EVAL", script::SCRIPT)
    }

    fn call(&self, name: &str, script: &str) -> Cmd {
        let mut call = cmd(name);
        call.arg(script);
        script::encode(0, &[self.ask.asked()], &mut call);
        call
    }

    /// Whether the script's reply is a decision.
    pub fn is_decided(&self, reply: &Value) -> Result<(), Fault> {
        let bad = |reason: String| Fault::BadResponse(reason);
        let answers = script::decode(reply, &[self.ask.asked()]).map_err(|reason| bad(reason.to_string()))?;
        match answers.first() {
            Some(Ok(_)) => Ok(()),
            Some(Err(failure)) => Err(bad(format!("a key of ours is damaged ({})", failure.damage.name()))),
            None => Err(bad("the script decided nothing".to_owned())),
        }
    }

    pub fn get(&self) -> Cmd {
        let mut get = cmd("GET");
        get.arg(&self.key);
        get
    }

    pub fn mget(&self) -> Cmd {
        let mut mget = cmd("MGET");
        mget.arg(&self.key);
        mget
    }

    pub fn set(&self) -> Cmd {
        let mut set = cmd("SET");
        set.arg(&self.key).arg("doctor").arg("PX").arg(TTL_MS);
        set
    }
}
