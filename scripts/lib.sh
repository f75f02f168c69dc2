# Shared by the set-up scripts; sourced by bash. What belongs here: messages, packages, stamps.
#
# Every step is skipped when its result is there and its inputs are what they were: a stamp beside the result holds
# the hash of the inputs' content (never times: a fresh clone has new ones). A stamp is written last, so a step that
# was interrupted is done again. Nothing is installed on the machine that is there already, and nothing without saying so.

set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"

# Go and pip keep their caches below HOME; a bare service account may have none.
mkdir -p .servers/bin
export HOME="${HOME:-$root/.servers/home}"

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
  printf 'setup: cannot go on: %s\n' "$*" >&2
  exit 1
}

# missing SERVER REMEDY: a server that some tests run on cannot be had. Where CI is set that is an error: a gate must not
# pass by skipping them.
missing() {
  case "${CI:-}" in
    "" | 0 | [Ff]alse) say "there is no $1 here: the tests that run on it are skipped ($2)" ;;
    *) die "there is no $1 here, an error because CI is set; $2" ;;
  esac
}

# Two set-ups in one tree wait for each other. Taken by a script, inherited by the ones it starts.
lock() {
  if [ -z "${NSQDIGEST_SETUP_LOCKED:-}" ] && command -v flock >/dev/null; then
    exec 9>.servers/lock
    flock -n 9 || { say "waiting for another set-up in this tree"; flock 9; }
    export NSQDIGEST_SETUP_LOCKED=1
  fi
}

# Debian's Python has no ensurepip until its package for virtual environments is there.
can_make_venvs() {
  "$1" -I -c 'import venv, ensurepip; ensurepip.version()' 2>/dev/null </dev/null
}

hash_text() { sha256sum | cut -d ' ' -f 1; }

# The content and names of files and folders (byte code left out), as one hash.
hash_files() {
  find "$@" -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 -r sha256sum | hash_text
}

fresh() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

stamp() {
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" >"$1"
}

# Runs a talkative command in silence; its output is shown only when it fails.
quietly() {
  local output
  output=$(mktemp)
  if "$@" >"$output" 2>&1 </dev/null; then
    rm -f "$output"
  else
    tail -n 30 "$output" >&2
    rm -f "$output"
    return 1
  fi
}

runs_as_root() {
  [ $# = 0 ] || { command -v "$1" >/dev/null && "$@" true; }
}

# apt_install PACKAGE WHAT_FOR: as root or with sudo; else, or when it fails, says what to install and answers 1.
# The package lists are fetched only when the install fails without.
apt_install() {
  local package=$1 purpose=$2 as_root=()
  local advice="$purpose needs the package $package; install it (apt-get install $package), then try again"
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
    if [ ! -t 0 ] || [ ! -t 2 ]; then
      as_root=(sudo -n) # nobody there to type a password
    fi
  fi
  if ! command -v apt-get >/dev/null || ! runs_as_root "${as_root[@]}"; then
    say "$advice"
    return 1
  fi
  say "installing the package $package (for $purpose)"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
  local install=("${apt[@]}" install --no-install-recommends "$package")
  if ! quietly "${install[@]}" 2>/dev/null; then
    say "fetching the package lists first"
    quietly "${apt[@]}" update || say "apt-get update failed; trying with the lists as they are"
    quietly "${install[@]}" || { say "$advice"; return 1; }
  fi
}

# Packages of the distribution without root: from the mirrors that the machine's own apt sources name, with apt folders of
# its own, so that nothing outside of .servers changes. apt checks the signatures as ever.

# debian_sources SUITE_SUFFIX…: a sources list, of each repository with this release, the release and these suites of it.
debian_sources() {
  local release signed_by= known uri suffix
  release=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  # Newer releases of Debian no longer trust this key for every repository.
  [ ! -r /usr/share/keyrings/debian-archive-keyring.gpg ] || signed_by=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
  apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Identifier: Packages' 'Component: main' | sort -u |
    while read -r known uri; do
      [ "$known" = "$release" ] || continue
      for suffix in "$@"; do
        printf "deb [target=Packages $signed_by] %s %s main\n" "$uri" "$release$suffix"
      done
    done
}

# debian_folder WORK SUITE_SUFFIX…: makes WORK ready for debian_unpack. Answers 1 where this is no Debian.
debian_folder() {
  local work=$1
  shift
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  mkdir -p "$work/lists/partial" "$work/archives/partial"
  cat >"$work/apt.conf" <<CONF
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$work/lists";
Dir::Cache "$work";
APT::Sandbox::User "$(id -un)";
CONF
  debian_sources "$@" >"$work/sources.list" && [ -s "$work/sources.list" ] || return 1
  quietly apt-get -c "$work/apt.conf" -q update || say "apt-get update failed in part; trying with what it got"
}

# debian_unpack WORK PACKAGE…: into WORK/unpacked.
debian_unpack() {
  local work=$1 package
  shift
  (cd "$work" && quietly apt-get -c apt.conf -q download "$@") || return 1
  for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$work/unpacked" && rm "$package" || return 1
  done
}
