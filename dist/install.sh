#!/bin/sh
# Installs the tinkrs program of a release, after its checksum has been verified.
#
# usage: install.sh [FROM]
#   FROM  a folder, or the address of one, with the tarball and SHA256SUMS; by default the newest release
#   TINKRS_INSTALL_DIR  where the program goes (default ~/.local/bin)
#
# Needs sh, tar, sha256sum and, for an address, curl. Nothing is installed unless everything has worked.
set -eu

fail() { echo "install.sh: $*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || fail "$1 is needed $2"; }

fetch() {
  case $from in
  https://*)
    need curl "to download; or download SHA256SUMS and the archive by other means, and name their folder"
    curl --proto '=https' --tlsv1.2 -fsSL "$from/$1" -o "$work/$1" || fail "could not download $from/$1"
    ;;
  *://*) fail "$from: releases are downloaded over https alone" ;;
  *) cp -- "$from/$1" "$work/$1" || fail "there is no $1 in $from" ;;
  esac
}

# All of it is in a function that the last line calls: a script that has come only in part does nothing.
main() {
  from=${1:-https://github.com/tinkrs/tinkrs/releases/latest/download}
  to=${TINKRS_INSTALL_DIR:-${HOME:+$HOME/.local/bin}}
  [ -n "$to" ] || fail "there is no HOME to install into: name a folder in TINKRS_INSTALL_DIR"
  case $to in /*) ;; *) to=$PWD/$to ;; esac

  [ "$(uname -s)" = Linux ] || fail "there are binaries for Linux alone; elsewhere: cargo install --path crates/cli"
  processor=$(uname -m)
  need sha256sum "to verify what is installed"
  need tar "to unpack the archive"
  work=$(mktemp -d)
  new=
  trap 'rm -rf "$work" ${new:+"$new"}' EXIT
  # A shell that a signal ends does nothing at its exit, unless it exits by itself.
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM

  fetch SHA256SUMS
  tarball=$(sed -n "s/^[0-9a-f]\{64\}  \(tinkrs-[0-9A-Za-z.+-]*-$processor-linux\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
  [ -n "$tarball" ] || fail "this release has no binary for $processor; build it: cargo install --path crates/cli"
  [ "$(printf '%s\n' "$tarball" | wc -l)" = 1 ] || fail "SHA256SUMS names several binaries for $processor"
  fetch "$tarball"
  (cd "$work" && grep -F "  $tarball" SHA256SUMS | sha256sum -c --status -) ||
    fail "$tarball is damaged or was changed: its checksum is not the one in SHA256SUMS; nothing was installed"
  program=${tarball%.tar.gz}/tinkrs
  tar -xzf "$work/$tarball" -C "$work" "$program" && [ -f "$work/$program" ] && [ ! -h "$work/$program" ] ||
    fail "$tarball has no program in it; nothing was installed"

  mkdir -p "$to" || fail "could not make the folder $to: name another one in TINKRS_INSTALL_DIR"
  [ ! -d "$to/tinkrs" ] || fail "$to/tinkrs is a folder: name another place in TINKRS_INSTALL_DIR"
  # A new file and a rename: a program that is running keeps the old one, and so does who had one if this one does not run.
  new=$(mktemp "$to/.tinkrs.XXXXXX") || fail "could not write to $to: name another folder in TINKRS_INSTALL_DIR"
  cp "$work/$program" "$new" || fail "could not write to $to: name another folder in TINKRS_INSTALL_DIR"
  chmod 755 "$new"
  version=$("$new" --version) || fail "the program of $tarball does not run on this machine; nothing was installed"
  mv "$new" "$to/tinkrs"
  new=
  echo "installed $version as $to/tinkrs"
  case :$PATH: in *":$to:"*) ;; *) echo "$to is not in PATH; add it, or run $to/tinkrs" ;; esac
}

main "$@"
