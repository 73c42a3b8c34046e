//! Credentials are found where a service's own tools find them, renewed when they have expired, and never shown.

use crate::common::*;
use crate::store::{Fault, Store};
use std::fmt::Write;
use std::sync::{Arc, Mutex};

/// What is said by way of `tracing` and `log`.
static SAID: Mutex<String> = Mutex::new(String::new());

struct Listener;

impl tracing::Subscriber for Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut Fields);
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut Fields);
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Fields);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

struct Fields;

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let _ = writeln!(SAID.lock().unwrap(), "{field}: {value:?}");
    }
}

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let _ = writeln!(SAID.lock().unwrap(), "{}", record.args());
    }
    fn flush(&self) {}
}

fn listen() {
    tracing::subscriber::set_global_default(Listener).unwrap();
    log::set_boxed_logger(Box::new(Listener)).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
}

/// Nothing of it was said.
fn assert_secret(what: &str, more: &str) {
    let said = SAID.lock().unwrap();
    assert!(!said.is_empty());
    let found = said.lines().chain(more.lines()).find(|line| line.contains(what));
    assert_eq!(found, None);
}

#[test]
fn keys_in_the_environment() {
    alone!("AWS_ACCESS_KEY_ID" => "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY" => "hunter2hunter2", "AWS_SESSION_TOKEN" => "hunter2token");
    listen();
    let (store, _folder, tier) = store_with(&pattern(MIB));
    store.put("/bucket/a%20key", &pattern(2 * MIB));
    store.settings().wants = Some("Credential=AKIDEXAMPLE/".to_owned());
    // SAFETY: one thread of this process's looks at its environment, this one.
    unsafe { std::env::set_var("AWS_ENDPOINT_URL", store.url("")) };
    let map = open(&tier, "s3://bucket/a key");
    assert!(map[..] == pattern(2 * MIB)[..]);
    let mut more = format!("{map:?} {:?}", map.object());
    store.settings().wants = Some("another's".to_owned());
    more += &format!("{:?}", options(&tier).map("s3://bucket/a key"));
    more += &options(&tier).map("s3://bucket/a key").unwrap_err().to_string();
    assert!(more.contains("AWS_PROFILE") && more.contains("403, AccessDenied"), "{more}");
    assert_secret("hunter2", &more);
    assert_secret("Signature=", &more);
}

#[test]
fn an_access_that_expires_is_renewed() {
    let folder = folder();
    let path = folder.path().join("credentials");
    let path = path.to_str().unwrap();
    alone!("AWS_SHARED_CREDENTIALS_FILE" => path, "AWS_PROFILE" => "work", "FASTMAP_TEST_URL" => path);
    let path = std::env::var("AWS_SHARED_CREDENTIALS_FILE").unwrap();
    let write = |key: &str| {
        let profile = format!(
            "[other]\naws_access_key_id = X\n[work]\naws_access_key_id = {key}\naws_secret_access_key = hunter2\n"
        );
        std::fs::write(&path, profile).unwrap();
    };
    let bytes = pattern(8 * MIB);
    let store = Store::start();
    store.put("/bucket/key", &bytes);
    store.settings().wants = Some("Credential=FIRST/".to_owned());
    // SAFETY: one thread of this process's looks at its environment, this one.
    unsafe { std::env::set_var("AWS_ENDPOINT_URL_S3", store.url("")) };
    write("FIRST");
    let tier = tier(folder.path(), 64 * MIB);
    let map = open(&tier, "s3://bucket/key");
    assert_eq!(map[0], bytes[0]);
    store.settings().wants = Some("Credential=SECOND/".to_owned());
    let error = map.read_at(&mut [0], MIB).unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    write("SECOND");
    assert_eq!(map[4 * MIB], bytes[4 * MIB]);
}

#[test]
fn public_buckets_need_none() {
    alone!();
    let bytes = pattern(MIB);
    let (store, _folder, tier) = store_with(&bytes);
    store.put("/bucket/key", &bytes);
    // SAFETY: one thread of this process's looks at its environment, this one.
    unsafe {
        std::env::set_var("AWS_ENDPOINT_URL", store.url(""));
        std::env::set_var("STORAGE_EMULATOR_HOST", store.address().to_string());
    }
    assert!(open(&tier, "s3://bucket/key")[..] == bytes[..]);
    assert!(!store.settings().heard.to_ascii_lowercase().contains("authorization"));
    store.put("/storage/v1/b/bucket/o/key", &bytes);
    assert!(open(&tier, "gs://bucket/key")[..] == bytes[..]);
}

#[test]
fn the_same_name_elsewhere_is_another_object() {
    alone!();
    let (one, other) = (pattern(MIB), Arc::new(vec![1; MIB]));
    let stores = [Store::start(), Store::start()];
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    for (store, bytes) in stores.iter().zip([&one, &other]) {
        store.put("/bucket/key", bytes);
        store.change("/bucket/key", |object| object.etag = Some("\"same\"".to_owned()));
        // SAFETY: one thread of this process's looks at its environment, this one.
        unsafe { std::env::set_var("AWS_ENDPOINT_URL", store.url("")) };
        assert!(open(&tier, "s3://bucket/key")[..] == bytes[..]);
    }
}

#[test]
fn another_host_is_not_told_of_a_signed_url() {
    if !ready() {
        return;
    }
    let bytes = pattern(MIB);
    let (store, _folder, tier) = store_with(&bytes);
    let elsewhere = Store::start();
    elsewhere.settings().objects = store.settings().objects.clone();
    store.settings().always = Some(Fault::Moved(elsewhere.url("/object")));
    let map = open(&tier, &store.url("/object?X-Amz-Signature=hunter2"));
    assert!(map[..] == bytes[..]);
    assert!(store.settings().heard.contains("hunter2"));
    let heard = elsewhere.settings().heard.clone();
    assert!(heard.contains("GET /object") && !heard.contains("hunter2"), "{heard}");
}

#[test]
fn a_netrc_and_a_signed_url() {
    let folder = folder();
    let netrc = folder.path().join("netrc");
    alone!("NETRC" => netrc.to_str().unwrap());
    listen();
    std::fs::write(std::env::var("NETRC").unwrap(), "machine 127.0.0.1 login me password hunter2").unwrap();
    let bytes = pattern(2 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    // me:hunter2
    store.settings().wants = Some("Basic bWU6aHVudGVyMg==".to_owned());
    let url = store.url("/object?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2");
    let map = open(&tier, &url);
    assert!(map[..] == bytes[..]);
    assert!(store.settings().heard.contains("GET /object?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2 HTTP/1.1"));
    let mut more = format!("{map:?} {:?}", tier.list().unwrap());
    store.put("/object", &pattern(3 * MIB));
    let map = open(&tier, &url);
    store.put("/object", &bytes);
    more += &map.read_at(&mut [0], MIB).unwrap_err().to_string();
    store.settings().wants = Some("nobody".to_owned());
    more += &options(&tier).map(&url).unwrap_err().to_string();
    drop(store);
    more += &options(&tier).map(&url).unwrap_err().to_string();
    println!("{more}");
    assert_secret("hunter2", &more);
    assert_secret("bWU6aHVudGVyMg", &more);
}
