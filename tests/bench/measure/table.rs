//! Markdown, medians, and what the machine is.

use std::{fs, process::Command};

pub struct Table {
    columns: Vec<&'static str>,
}

impl Table {
    /// Prints the head at once, and rows as they come, so that a long run shows how far it is.
    pub fn new(title: &str, columns: &[&'static str]) -> Self {
        println!(
            "\n### {title}\n\n| {} |\n|{}|",
            columns.join(" | "),
            "---|".repeat(columns.len()).trim_end_matches('|')
        );
        Self { columns: columns.to_vec() }
    }

    pub fn row(&self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns.len(), "one cell for each column");
        println!("| {} |", cells.join(" | "));
    }
}

/// What several rounds came to.
pub struct Rounds(Vec<f64>);

impl Rounds {
    pub fn new(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "at least one round was measured");
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        if self.0.len() % 2 == 1 { self.0[middle] } else { f64::midpoint(self.0[middle - 1], self.0[middle]) }
    }

    pub fn least(&self) -> f64 {
        self.0[0]
    }

    /// From the least to the most, in parts of the median.
    pub fn spread(&self) -> String {
        let (least, most) = (self.0[0], self.0[self.0.len() - 1]);
        format!("{:.0} %", (most - least) / self.median() * 100.0)
    }
}

pub fn machine() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_matches([' ', '\t', ':', '=', '"']).to_owned()).unwrap_or_default()
    };
    let first_line = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).lines().next().unwrap_or_default().to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{} x {}, Linux {}, {}; {}; {}; {}",
        cores,
        field(&read("/proc/cpuinfo"), "model name"),
        read("/proc/sys/kernel/osrelease").trim(),
        field(&read("/etc/os-release"), "PRETTY_NAME"),
        first_line("rustc", "--version"),
        first_line("redis-server", "--version"),
        first_line("valgrind", "--version"),
    );
    println!("load average {}", read("/proc/loadavg").trim());
}
