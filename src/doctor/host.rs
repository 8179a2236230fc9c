//! This host: open files and memory, against what the settings may ask for.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::finding::Finding;
use crate::{config::settings::Settings, connections, engine::rule::OnStoreFailure};

/// What a counter of the embedded store takes.
const ENTRY_BYTES: u64 = 200;
/// What the process takes beside counters.
const BASE_BYTES: u64 = 64 << 20;

/// `policies` are those that rules have of their own.
pub fn examine(settings: &Settings, policies: &[OnStoreFailure]) -> Vec<Finding> {
    let files = connections::possible_for_grpc().map(|possible| judge_files(possible, settings.grpc.max_connections));
    files.into_iter().chain(judge_memory(settings, policies, memory_limit())).collect()
}

fn judge_files(possible: usize, wanted: usize) -> Finding {
    if possible >= wanted {
        return Finding::ok("files", &"ulimit -n", format!("enough for {wanted} connections"));
    }
    let message =
        format!("enough for {possible} connections, and GRPC_MAX_CONNECTIONS is {wanted}: raise it, or lower that");
    Finding::warn("files", &"ulimit -n", message)
}

/// The memory that this process may use: of its cgroup or one above, or of the machine.
fn memory_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        total.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    limits.chain(machine.map(|kilobytes| kilobytes * 1024)).min()
}

/// Where a limit may stand, in either version of cgroups. Inside a container the path is often that of the host, and only the
/// root is there.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (root, file) = match fields.next() {
            Some("") => ("/sys/fs/cgroup", "memory.max"),
            Some(controllers) if controllers.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let group = Path::new(root).join(fields.next().unwrap_or_default().trim_start_matches('/'));
        files.extend(group.ancestors().take_while(|path| path.starts_with(root)).map(|path| path.join(file)));
    }
    files
}

fn judge_memory(settings: &Settings, policies: &[OnStoreFailure], limit: Option<u64>) -> Option<Finding> {
    let (limit, entries) = (limit?, settings.store.memory_entries_max);
    let needed = u64::try_from(entries).unwrap_or(u64::MAX).saturating_mul(ENTRY_BYTES).saturating_add(BASE_BYTES);
    let embedded = settings.store.redis.is_none();
    let mut in_use = policies.iter().chain([&settings.store.on_store_failure]);
    let local = in_use.any(|policy| *policy == OnStoreFailure::Local);
    let figures = format!("{entries} counters take up to {} MiB, and {} MiB can be had", needed >> 20, limit >> 20);
    let target = "MEMORY_STORE_MAX_ENTRIES";
    Some(match (needed <= limit, embedded, local) {
        (true, ..) => Finding::ok("memory", &target, figures),
        (false, true, _) => {
            let what = "many keys would get the process killed: lower it, or raise the limit";
            Finding::fail("memory", &target, format!("{figures}: {what}"))
        }
        (false, false, true) => {
            let what = "while the store is down, many keys would get the process killed: lower it, or raise the limit";
            Finding::warn("memory", &target, format!("{figures}: {what}"))
        }
        (false, false, false) => Finding::ok("memory", &target, format!("{figures}, but the counters are in Redis")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn too_few_descriptors_for_the_connections_are_told() {
        assert_eq!(judge_files(3_000, 4_096).verdict, Verdict::Warn);
        assert_eq!(judge_files(4_096, 4_096).verdict, Verdict::Ok);
    }

    #[test]
    fn a_limit_of_memory_is_looked_for_in_every_group_above() {
        let files = |groups| limit_files(groups).into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let unified = ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"];
        assert_eq!(files("0::/a/b\n"), unified);
        let memory = ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(files("3:cpu,cpuacct:/a\n2:hugetlb,memory:/a\n"), memory);
    }

    #[test]
    fn counters_that_do_not_fit_into_memory_are_told() {
        let verdict_with = |pairs: &[(&str, &str)], policies: &[OnStoreFailure], limit_mib: u64| {
            let value = |name: &str| pairs.iter().find(|(env, _)| *env == name).map(|(_, value)| (*value).to_owned());
            let (settings, _) = Settings::read(value).unwrap();
            judge_memory(&settings, policies, Some(limit_mib << 20)).unwrap().verdict
        };
        let verdict = |pairs: &[(&str, &str)], limit_mib| verdict_with(pairs, &[], limit_mib);
        assert_eq!(verdict(&[], 256), Verdict::Ok);
        assert_eq!(verdict(&[], 128), Verdict::Fail);
        assert_eq!(verdict(&[("MEMORY_STORE_MAX_ENTRIES", "100000")], 128), Verdict::Ok);
        assert_eq!(verdict(&[("REDIS_URL", "a:1")], 128), Verdict::Ok);
        assert_eq!(verdict(&[("REDIS_URL", "a:1"), ("ON_STORE_FAILURE", "local")], 128), Verdict::Warn);
        let by_a_rule = verdict_with(&[("REDIS_URL", "a:1")], &[OnStoreFailure::Deny, OnStoreFailure::Local], 128);
        assert_eq!(by_a_rule, Verdict::Warn);
    }
}
