//! The `kvtide` command.
fn main() {}
