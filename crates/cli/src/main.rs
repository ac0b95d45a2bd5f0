//! The `tinkrs` command line. It knows its version and nothing else yet.

use std::io::Write;

fn main() -> std::io::Result<()> {
    writeln!(std::io::stdout(), "tinkrs {}", env!("CARGO_PKG_VERSION"))
}
