//! What a lock needs to know of the machine: its name, and which of its processes are running.

/// Whether a process of this machine is running, or has ended and is not yet forgotten by its parent.
#[cfg(unix)]
pub(crate) fn is_running(process: u32) -> bool {
    let known =
        i32::try_from(process).ok().filter(|number| *number > 0).and_then(rustix::process::Pid::from_raw);
    // What we may not signal is running.
    known.is_some_and(|process| rustix::process::test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}

/// Whether a process of this machine is running.
#[cfg(windows)]
pub(crate) fn is_running(process: u32) -> bool {
    use windows_sys::Win32::Foundation::{CloseHandle, ERROR_INVALID_PARAMETER, WAIT_TIMEOUT};
    use windows_sys::Win32::System::Threading::{OpenProcess, PROCESS_SYNCHRONIZE, WaitForSingleObject};

    // SAFETY: the handle is checked before it is used, and closed once. Waiting for no time changes nothing.
    #[allow(unsafe_code)]
    unsafe {
        let handle = OpenProcess(PROCESS_SYNCHRONIZE, 0, process);
        if handle.is_null() {
            // What we may not open is running.
            return std::io::Error::last_os_error().raw_os_error() != Some(ERROR_INVALID_PARAMETER as i32);
        }
        // Others may keep a handle of an ended process, so that it still has a number.
        let is_running = WaitForSingleObject(handle, 0) == WAIT_TIMEOUT;
        CloseHandle(handle);
        is_running
    }
}

/// The machine's name, without control characters; `this machine` if it has none.
pub(crate) fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(windows)]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| !c.is_control()).collect();
    if name.is_empty() { "this machine".to_string() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_it_has_ended() {
        assert!(is_running(std::process::id()));
        assert!(!is_running(u32::MAX) && !is_running(u32::MAX - 1));
        let mut listing = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("--list")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let process = listing.id();
        assert!(is_running(process));
        listing.wait().unwrap();
        drop(listing);
        assert!(!is_running(process));
    }
}
