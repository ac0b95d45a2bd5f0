# What CI runs.
check:
    .ci/run

# The README's test command.
test:
    cargo test --workspace
