//! Private mounts for tests.

use std::process::Command;

/// A command that runs another command with private mounts; `None` if the system does not allow
/// that.
pub fn unshare() -> Option<Command> {
    let variants: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let is_allowed = |variant: &&&[&str]| {
        let mount =
            Command::new("unshare").args(**variant).args(["mount", "-t", "tmpfs", "tmpfs", "/tmp"]).output();
        mount.is_ok_and(|output| output.status.success())
    };
    let variant = variants.iter().find(is_allowed)?;
    let mut command = Command::new("unshare");
    command.args(*variant);
    Some(command)
}
