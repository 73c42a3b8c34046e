//! An object is mapped at one version: of another it never gives a byte.

use crate::common::*;
use fastmap_tier::UNIT as UNIT_BYTES;
use std::time::Duration;

#[test]
fn an_object_that_changes_is_stale() {
    if !ready() {
        return;
    }
    for ignores_if_match in [false, true] {
        let (old, new) = (pattern(8 * MIB), pattern(8 * MIB + 1));
        let (store, _folder, tier) = store_with(&old);
        store.settings().ignores_if_match = ignores_if_match;
        let url = store.url("/object");
        let map = open(&tier, &url);
        assert_eq!(map[0], old[0]);
        store.put("/object", &new);
        let error = map.read_at(&mut [0], 6 * MIB).unwrap_err().to_string();
        assert!(error.contains("has changed") && error.contains(&url), "{error}");
        assert!(map.pin(6 * MIB, 1).is_err() && map.gather(&[(6 * MIB, 1)], &mut [0]).is_err());
        // What is local is still there.
        let mut local = vec![0; UNIT_BYTES as usize];
        map.read_at(&mut local, 0).unwrap();
        assert!(local == old[..local.len()]);
        let map = open(&tier, &url);
        assert!(map[..] == new[..]);
    }
}

#[test]
fn the_same_length_and_another_etag() {
    if !ready() {
        return;
    }
    let (old, mut new) = (pattern(4 * MIB), pattern(4 * MIB).to_vec());
    new.reverse();
    let new = std::sync::Arc::new(new);
    let (store, _folder, tier) = store_with(&old);
    store.settings().ignores_if_match = true;
    let map = open(&tier, &store.url("/object"));
    assert_eq!(map[0], old[0]);
    store.put("/object", &new);
    assert!(map.read_at(&mut [0], 3 * MIB).is_err());
    assert!(open(&tier, &store.url("/object"))[..] == new[..]);
}

#[test]
fn without_an_etag_the_time_tells() {
    if !ready() {
        return;
    }
    let bytes = pattern(4 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    store.change("/object", |object| object.etag = None);
    let map = open(&tier, &store.url("/object"));
    assert_eq!(map[0], bytes[0]);
    store.change("/object", |object| object.modified = Some("Wed, 21 Oct 2015 07:28:01 GMT".to_owned()));
    assert!(map.read_at(&mut [0], 3 * MIB).unwrap_err().to_string().contains("has changed"));
}

#[test]
fn what_tells_versions_apart_is_told_each_time() {
    if !ready() {
        return;
    }
    let bytes = pattern(4 * MIB);
    let errors = [false, true].map(|is_etag| {
        let (store, _folder, tier) = store_with(&bytes);
        store.settings().ignores_if_match = true;
        store.change("/object", |object| {
            object.version = Some("1".to_owned());
            if !is_etag {
                (object.etag, object.modified) = (None, None);
            }
        });
        let map = open_for(&tier, &store.url("/object"), Duration::from_secs(1));
        assert_eq!(map[0], bytes[0]);
        // Another version; or it may be one.
        store.change("/object", |object| match is_etag {
            true => object.etag = None,
            false => object.version = Some("2".to_owned()),
        });
        map.read_at(&mut [0], 3 * MIB).unwrap_err().to_string()
    });
    assert!(errors[0].contains("has changed") && errors[1].contains("did not answer"), "{errors:?}");
}

#[test]
fn an_etag_without_anything_in_it_is_none() {
    if !ready() {
        return;
    }
    let bytes = pattern(MIB);
    let (store, _folder, tier) = store_with(&bytes);
    store.change("/object", |object| object.etag = Some(String::new()));
    assert!(open(&tier, &store.url("/object"))[..] == bytes[..]);
    assert!(open(&tier, &store.url("/object"))[..] == bytes[..] && tier.list().unwrap().len() == 1);
}

#[test]
fn a_time_that_is_none_is_still_compared() {
    if !ready() {
        return;
    }
    let bytes = pattern(4 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    store.change("/object", |object| object.modified = Some("some time ago".to_owned()));
    assert!(open(&tier, &store.url("/object"))[..] == bytes[..]);
    store.change("/object", |object| object.etag = None);
    let map = open(&tier, &store.url("/object"));
    assert_eq!(map[0], bytes[0]);
    store.change("/object", |object| object.modified = Some("just now".to_owned()));
    assert!(map.read_at(&mut [0], 3 * MIB).is_err());
}

#[test]
fn an_object_that_nothing_tells_from_another_is_refused() {
    if !ready() {
        return;
    }
    let (store, _folder, tier) = store_with(&pattern(MIB));
    store.change("/object", |object| (object.etag, object.modified) = (None, None));
    let error = options(&tier).map(&store.url("/object")).unwrap_err().to_string();
    assert!(error.contains("ETag"), "{error}");
}

#[test]
fn one_that_is_gone_says_so() {
    if !ready() {
        return;
    }
    let (store, _folder, tier) = store_with(&pattern(2 * MIB));
    let error = options(&tier).map(&store.url("/nothing")).unwrap_err().to_string();
    assert!(error.contains("no such object") && error.contains("404"), "{error}");
    let map = open(&tier, &store.url("/object"));
    store.settings().objects.clear();
    let error = map.read_at(&mut [0], MIB).unwrap_err().to_string();
    assert!(error.contains("no longer in the store"), "{error}");
}

#[test]
fn a_file_that_changes_is_stale() {
    if !ready() {
        return;
    }
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    // Its end is farther away than what is read ahead at the beginning.
    let (path, bytes) = (folder.path().join("file"), pattern(40 * MIB));
    std::fs::write(&path, &bytes[..]).unwrap();
    let url = format!("file://{}", path.display());
    let map = open(&tier, &url);
    assert_eq!(map[..UNIT], bytes[..UNIT]);
    std::fs::write(&path, vec![1; 40 * MIB]).unwrap();
    assert!(map.read_at(&mut [0], 39 * MIB).unwrap_err().to_string().contains("has changed"));
    assert_eq!(open(&tier, &url)[39 * MIB], 1);
}
