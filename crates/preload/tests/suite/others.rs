//! Files that other processes open and map as well: what they write shows here, and what is stored here there.

use crate::common;

cases! {
    "others.c", &[];
    seen_at_once seen_soon opened_late read_late mapped_late protected_late;
    kernel open_elsewhere mapped_elsewhere mapped_before
}

/// A process without privileges, and with a file that is not its own: there is no lease for it.
#[test]
fn seen_of_strangers() {
    if !common::ready() {
        return;
    }
    // Where its statistics cannot be written they say nothing: whether the engine had the file is no matter here.
    let folder = common::folder();
    let exe = common::compile(folder.path(), "others.c", &[]);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for library in [None, Some(common::library())] {
        let output =
            common::command(&exe, library, &[]).arg("seen_of_strangers").arg(folder.path().join("data")).output();
        common::expect_success("others.c seen_of_strangers", &output.unwrap());
    }
}

/// A filter of system calls (seccomp(2)) that has no fanotify: it is said, once.
#[test]
fn unseen_is_said() {
    if !common::ready() {
        return;
    }
    use std::os::unix::process::CommandExt;
    let folder = common::folder();
    let exe = common::compile(folder.path(), "others.c", &[]);
    let mut command = common::command(&exe, Some(common::library()), &[]);
    command.arg("two_files").arg(folder.path().join("data"));
    let forbid = || {
        const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0), // its number
            step(IS, libc::SYS_fanotify_init as u32, 0, 1),
            step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0, 0),
            step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: numbers, and a filter that the kernel copies.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: system calls only.
    let output = unsafe { command.pre_exec(forbid) }.output().expect("timeout");
    common::expect_success("two_files", &output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().filter(|line| line.contains("would not be seen (fanotify:")).count(), 1, "{said}");
}
