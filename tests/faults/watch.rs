//! What must be as it was when a fault is over: the process lives, its files and threads are no more than before, and its log did
//! not fill.

use std::time::Instant;

use crate::{
    harness::{
        Server as Sluice,
        server::Footprint,
        wait::{DEADLINE, holds_within},
    },
    servers::Server,
    sheet::Sheet,
};

const LINES_A_MINUTE: usize = 10;
/// The thread that reads files, which looks after the rules now and then and ends when it has had nothing to do.
const COMES_AND_GOES: usize = 1;

/// Begun before the load, ended after it.
pub struct Watch<'s> {
    sluices: Vec<(&'s Sluice, Footprint, usize)>,
    began: Instant,
}

impl<'s> Watch<'s> {
    pub fn begin(sluices: impl IntoIterator<Item = &'s Sluice>) -> Self {
        let look = |sluice: &'s Sluice| {
            // Once it has read its rules again, it has opened all that it needs to follow them.
            sluice.reload();
            (sluice, settled(sluice), sluice.log().len())
        };
        Self { sluices: sluices.into_iter().map(look).collect(), began: Instant::now() }
    }

    /// How much more memory the one that took most has now, in MB.
    pub fn memory(&self, sheet: &Sheet, fault: &str, at_most_mb: f64) {
        let grown = |(sluice, before, _): &(&Sluice, Footprint, usize)| sluice.memory().saturating_sub(before.memory);
        let grown_mb = self.sluices.iter().map(grown).max().unwrap_or(0) as f64 / f64::from(1 << 20);
        let bound = format!("<= {at_most_mb} MB");
        sheet.judge(fault, "more memory", &format!("{grown_mb:.1} MB"), &bound, grown_mb <= at_most_mb);
    }

    /// After the load has stopped and the store is well.
    pub fn end(&self, sheet: &Sheet, fault: &str) {
        self.end_with(sheet, fault, 0);
    }

    /// The same where the log has a line for everything that was done on purpose.
    pub fn end_but_log(&self, sheet: &Sheet, fault: &str) {
        let quiet: Vec<_> =
            self.sluices.iter().map(|(sluice, before, _)| (*sluice, *before, sluice.log().len())).collect();
        Self { sluices: quiet, began: self.began }.end(sheet, fault);
    }

    /// With so many more files, which it has come to need meanwhile.
    pub fn end_with(&self, sheet: &Sheet, fault: &str, more_files: usize) {
        let minutes = usize::try_from(self.began.elapsed().as_secs() / 60 + 1).unwrap_or(1);
        for (sluice, before, lines) in &self.sluices {
            // Connections of callers take a moment to end.
            let mut now = sluice.footprint();
            holds_within(DEADLINE, || {
                now = sluice.footprint();
                now.files <= before.files + more_files && now.threads <= before.threads + COMES_AND_GOES
            });
            let lines = sluice.log().len() - lines;
            let fits = lines <= LINES_A_MINUTE * minutes;
            let is_back = now.files > 0
                && now.files <= before.files + more_files
                && now.threads <= before.threads + COMES_AND_GOES;
            // Told only where it is news: it is the same for every fault.
            if !(fits && is_back && is_alive(sluice)) {
                sheet.judge(fault, "alive", &is_alive(sluice), "true", is_alive(sluice));
                sheet.count(fault, "open files", now.files, before.files + more_files);
                sheet.count(fault, "threads", now.threads, before.threads + COMES_AND_GOES);
                sheet.count(fault, "lines in the log", lines, LINES_A_MINUTE * minutes);
                eprintln!("--- log of sluice\n{}\n---", sluice.log().join("\n"));
                return;
            }
        }
        let most =
            |of: fn(&Footprint) -> usize| self.sluices.iter().map(|(_, before, _)| of(before)).max().unwrap_or(0);
        let lines = self.sluices.iter().map(|(sluice, _, lines)| sluice.log().len() - lines).max().unwrap_or(0);
        let after = format!("alive, {} files, {} threads, {lines} lines", most(|of| of.files), most(|of| of.threads));
        sheet.judge(fault, "afterwards", &after, &format!("as before, <= {} lines", LINES_A_MINUTE * minutes), true);
    }
}

/// When nothing has been opened for a few looks: a process that has just started has not all that it needs.
fn settled(sluice: &Sluice) -> Footprint {
    const LOOKS: usize = 10;
    let (mut last, mut same) = (sluice.footprint(), 0);
    holds_within(DEADLINE, || {
        let now = sluice.footprint();
        same = if (now.files, now.threads) == (last.files, last.threads) { same + 1 } else { 0 };
        last = now;
        same >= LOOKS
    });
    last
}

fn is_alive(sluice: &Sluice) -> bool {
    sluice.get("/livez").status == 200
}

/// No key of any of these servers stays for ever, and nothing was tried that the documented ACL forbids.
pub fn clean(sheet: &Sheet, fault: &str, servers: &[&Server]) {
    let eternal = servers.iter().flat_map(|server| server.keys()).filter(|(_, left)| *left == -1).count();
    let denied: usize = servers.iter().map(|server| server.run::<Vec<redis::Value>>(&["ACL", "LOG"]).len()).sum();
    sheet.count(fault, "keys without a TTL, forbidden commands", eternal + denied, 0);
}
