use super::*;

pub(super) fn read(pairs: &[(&str, &str)]) -> Result<(Settings, Vec<Warning>), Vec<BadSetting>> {
    let pairs: HashMap<String, String> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Settings::read(|name| pairs.get(name).cloned())
}

#[test]
fn without_any_setting_the_defaults_hold() {
    let (settings, warnings) = read(&[]).unwrap();
    assert_eq!(settings.grpc.address.to_string(), "0.0.0.0:8081");
    assert_eq!(settings.debug.to_string(), "127.0.0.1:6070");
    assert_eq!(settings.store.memory_entries_max, 1_000_000);
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn every_setting_of_the_table_is_read_and_every_one_read_is_in_the_table() {
    let reader = Reader::new(|_: &str| None);
    reader.settings();
    let mut read = reader.read.into_inner();
    read.sort_unstable();
    read.dedup();
    let mut table: Vec<_> = GROUPS.iter().flat_map(|group| group.settings).map(|setting| setting.env).collect();
    table.sort_unstable();
    assert_eq!(read, table);
}

#[test]
fn all_wrong_settings_are_reported_together_with_their_values() {
    let bad =
        read(&[("PORT", "abc"), ("LOG_LEVEL", "loud"), ("SHADOW_MODE", "maybe"), ("DRAIN_DELAY", "5")]).unwrap_err();
    let text: Vec<String> = bad.iter().map(ToString::to_string).collect();
    assert_eq!(bad.len(), 4, "{text:?}");
    assert!(text.iter().any(|line| line == "PORT: 'abc' cannot be used: use a number from 0 to 65535"), "{text:?}");
}

#[test]
fn a_setting_of_the_reference_that_is_not_served_is_named() {
    let (_, warnings) = read(&[("MEMCACHE_HOST_PORT", "x:1"), ("USE_STATSD", "true")]).unwrap();
    assert!(warnings.iter().any(|warning| warning.contains("MEMCACHE_HOST_PORT")));
    assert!(warnings.iter().any(|warning| warning.contains("USE_STATSD")));
}

#[test]
fn what_the_reference_would_do_anyway_is_not_warned_of() {
    let defaults = [("CONFIG_TYPE", "FILE"), ("DISABLE_STATS", "0"), ("STATSD_PORT", "8125")];
    assert_eq!(read(&defaults).unwrap().1, Vec::<String>::new());
    let (_, warnings) = read(&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("DISABLE_STATS", "true")]).unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let mut names: Vec<_> = NOT_SERVED.iter().map(|(env, _)| env).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "one is there twice: {names:?}");
}

#[test]
fn a_variable_that_is_no_text_is_refused_by_name_and_not_shown() {
    use std::os::unix::ffi::OsStringExt as _;
    let garbled = |name: &str| {
        let is_meant = ["REDIS_AUTH", "SHADOW_MODE"].contains(&name);
        is_meant.then(|| OsString::from_vec(b"s3cret\xff".to_vec()))
    };
    let bad = Settings::from_flags_and(&HashMap::new(), garbled).unwrap_err();
    assert_eq!(bad.iter().map(|setting| setting.env).collect::<Vec<_>>(), ["SHADOW_MODE", "REDIS_AUTH"]);
    assert!(bad.iter().all(|setting| setting.to_string().contains("it is no UTF-8")), "{bad:?}");
    assert!(!format!("{bad:?}").contains("s3cret"), "{bad:?}");
    let flags = HashMap::from([("REDIS_AUTH", "x".to_owned()), ("SHADOW_MODE", "true".to_owned())]);
    assert!(Settings::from_flags_and(&flags, garbled).is_ok(), "a flag goes before the variable");
}

#[test]
fn rules_are_where_the_runtime_settings_of_the_reference_say() {
    let (settings, _) = read(&[("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")]).unwrap();
    assert_eq!(settings.rules.path, PathBuf::from("/data/ratelimit/config"));
    let (settings, _) = read(&[("RUNTIME_ROOT", "/data"), ("RATE_LIMIT_CONFIG", "/etc/rules.yaml")]).unwrap();
    assert_eq!(settings.rules.path, PathBuf::from("/etc/rules.yaml"));
}
