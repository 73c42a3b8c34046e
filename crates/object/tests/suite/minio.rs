//! A real store.

use crate::common::*;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const KEY: &str = "fastmap";
const SECRET: &str = "hunter2hunter2";

struct Minio {
    server: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Minio {
    /// `None`, and why, where there is none and none is to be built.
    fn start() -> Option<Minio> {
        let home = std::env::var("HOME").unwrap_or_default();
        let mut path = Path::new(&home).join("go/bin/minio");
        if std::env::var("CI").as_deref() == Ok("true") {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/minio");
            let built = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
            assert!(built.status.success());
            path = String::from_utf8(built.stdout).unwrap().trim().into();
        }
        if !path.exists() {
            skip(format!("no {}: scripts/minio builds it", path.display()));
            return None;
        }
        let folder = folder();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut server = Command::new(&path);
        server.args(["server", "--quiet", "--address", &address, "--console-address", "127.0.0.1:0"]);
        server.arg(folder.path().join("data")).env("MINIO_ROOT_USER", KEY).env("MINIO_ROOT_PASSWORD", SECRET);
        server.env("MINIO_UPDATE", "off").env("MINIO_CALLHOME_ENABLE", "off").env("HOME", folder.path());
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let minio = Minio { server, address, folder };
        until("MinIO is there", || minio.is_put("bucket", &[]));
        Some(minio)
    }

    /// A signed PUT, by curl(1).
    fn is_put(&self, path: &str, arguments: &[&str]) -> bool {
        let mut client = Command::new("curl");
        client.args([
            "--silent",
            "--fail",
            "--aws-sigv4",
            "aws:amz:us-east-1:s3",
            "--user",
            &format!("{KEY}:{SECRET}"),
        ]);
        client.args(["--request", "PUT"]).args(arguments).arg(format!("http://{}/{path}", self.address));
        client.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let file = self.folder.path().join("upload");
        std::fs::write(&file, bytes).unwrap();
        assert!(self.is_put(&format!("bucket/{path}"), &["--upload-file", file.to_str().unwrap()]));
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn an_object_in_minio() {
    // In the child there is no home to find it in.
    if std::env::var_os("FASTMAP_TEST_ALONE").is_none() {
        let Some(minio) = Minio::start() else {
            return;
        };
        let bytes = pattern(40 * MIB + 5);
        minio.put("folder/an%20object%2B.bin", &bytes);
        let mut child = child("minio::an_object_in_minio");
        child.envs([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)]);
        let mut child = child.env("AWS_ENDPOINT_URL_S3", format!("http://{}", minio.address));
        let folder = folder();
        child = child.env("FASTMAP_TEST_FOLDER", folder.path());
        let first = child.output().unwrap();
        said(&first);
        assert!(first.status.success());
        // A denied one, and one that changes.
        let denied = child.env("AWS_SECRET_ACCESS_KEY", "another").output().unwrap();
        assert!(String::from_utf8_lossy(&denied.stderr).contains("SignatureDoesNotMatch"), "{denied:?}");
        return;
    }
    if !ready() {
        return;
    }
    let folder = PathBuf::from(std::env::var("FASTMAP_TEST_FOLDER").unwrap());
    let tier = tier(&folder, 64 * MIB);
    let bytes = pattern(40 * MIB + 5);
    let map = open(&tier, "s3://bucket/folder/an object+.bin");
    let ranges: Vec<(usize, usize)> = (0..30).map(|row| (row * MIB + row * 999, 2000)).collect();
    let mut rows = vec![0; 30 * 2000];
    map.gather(&ranges, &mut rows).unwrap();
    for (row, (at, len)) in rows.chunks(2000).zip(ranges) {
        assert_eq!(row, &bytes[at..at + len]);
    }
    assert!(map[..] == bytes[..]);
    assert_eq!(map.stats().retries, 0, "{:?}", map.stats());
    let error = options(&tier).map("s3://bucket/nothing").unwrap_err().to_string();
    assert!(error.contains("404, NoSuchKey"), "{error}");
    let error = options(&tier).map("s3://no-such-bucket/key").unwrap_err().to_string();
    assert!(error.contains("404, NoSuchBucket"), "{error}");
}
