//! Checks that need a process of their own: this binary again, with that test alone.

use std::{
    env,
    process::{Command, Output},
};

/// Says to a child that it is one.
const CHILD: &str = "FAKE_CHILD";

/// In a child runs `act` and gives nothing; otherwise runs the test of this path in a child with these variables.
pub fn in_child(path: &str, variables: &[(&str, &str)], act: impl FnOnce()) -> Option<Output> {
    if env::var_os(CHILD).is_some() {
        act();
        return None;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", path, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    Some(command.envs(variables.iter().copied()).output().unwrap())
}
