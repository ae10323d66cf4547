//! Files that code renders: a test compares each with what is rendered now, and `OCELLI_BLESS=1` rewrites it.

use std::{env, fs, path::Path};

/// `file`, from the repository's root, is as `rendered`; `filter` names the tests that rewrite it.
pub(crate) fn check(file: &str, rendered: &str, filter: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if env::var_os("OCELLI_BLESS").is_some() {
        fs::write(&path, rendered).expect(file);
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == rendered,
        "{file} is not what the code renders; OCELLI_BLESS=1 cargo test --lib {filter} rewrites it"
    );
}
