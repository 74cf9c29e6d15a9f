#!/usr/bin/env bash
# Installs what attnbench is built from and configures build/. Sourced by the scripts beside it; run
# by itself, as CI and the Dockerfile do, it only installs. All output goes to stderr. A failure exits
# with 4, the code of contract section 3 for a failed set-up.
set -euo pipefail

ATTNBENCH_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
BUILD_DIR="$ATTNBENCH_ROOT/build"
# Why in groups: most builds by the scripts are builds from scratch, which share headers this way.
CMAKE_OPTIONS=(-DCMAKE_BUILD_TYPE=Release -DATTNBENCH_UNITY=ON)
UNPACKED_DIR="$BUILD_DIR/deps"
# dpkg-dev and file: by them cpack finds what a .deb depends on.
PACKAGES=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libyaml-cpp-dev libeigen3-dev
  libcli11-dev doctest-dev python3 python3-numpy dpkg-dev file)
# Installed when they can be; what needs them says so when they are missing.
OPTIONAL_PACKAGES=()
# What a script has to fetch that is of no matter to the build, beside which it runs.
while_building() { :; }

say() { echo "attnbench set-up: $*" >&2; }

setup_failed() {
  say "$*"
  exit 4
}

# Of the packages that are named, those that are not installed, one a line. Why the status: dpkg also
# knows packages that others only suggest.
missing_packages() {
  [[ $# -gt 0 ]] || return 0
  dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
    awk '$2 == "installed" { print $1 }' | sort -u |
    comm -13 - <(printf '%s\n' "$@" | sort -u)
}

has_valijson() {
  [[ -f /usr/include/valijson/validator.hpp ||
    -f "$UNPACKED_DIR/usr/include/valijson/validator.hpp" ]]
}

has_d3() {
  local file=share/nodejs/d3/dist/d3.min.js
  [[ -f "/usr/$file" || -f "$UNPACKED_DIR/usr/$file" ]]
}

# Runs a command as root; its output is shown only when it fails.
as_root() {
  local -a prefix=()
  [[ $EUID -eq 0 ]] || prefix=(sudo)
  local output
  if ! output=$("${prefix[@]}" env DEBIAN_FRONTEND=noninteractive "$@" 2>&1 </dev/null); then
    printf '%s\n' "$output" | tail -n 20 >&2
    return 1
  fi
}

# What every apt-get of these scripts is told: a mirror that stumbles is asked again, and another
# program's hold on dpkg is waited for.
APT_GET=(apt-get -q -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300)

# Package lists may be missing (container images) or older than what the mirror still holds.
# Arguments: the packages that are wanted, for the message.
UPDATED_LISTS=false
update_lists() {
  $UPDATED_LISTS && return
  UPDATED_LISTS=true
  say "updating the package lists (apt-get update)"
  as_root "${APT_GET[@]}" update || setup_failed "apt-get update failed; needed: $*"
}

install_packages() {
  local -a missing=("$@")
  command -v apt-get >/dev/null ||
    setup_failed "apt-get not found; please install: ${missing[*]}"
  if [[ $EUID -ne 0 ]] && ! command -v sudo >/dev/null; then
    setup_failed "neither root nor sudo; please install: ${missing[*]}"
  fi
  apt-cache show --no-all-versions "${missing[@]}" >/dev/null 2>&1 || update_lists "${missing[@]}"
  say "installing ${missing[*]}"
  local -a install=("${APT_GET[@]}" install -y --no-install-recommends "${missing[@]}")
  as_root "${install[@]}" ||
    { ! $UPDATED_LISTS && update_lists "${missing[@]}" && as_root "${install[@]}"; } ||
    setup_failed "apt-get could not install: ${missing[*]}"
}

# Why unpacked and not installed: libvalijson-dev drags in Qt, Poco and Boost for adapters that are not
# used here, node-d3 Node.js and forty packages for one script.
unpack_package() {
  local package="$1"
  say "unpacking $package into build/deps"
  apt-cache show --no-all-versions "$package" >/dev/null 2>&1 || update_lists "$package"
  local download
  download=$(mktemp -d)
  # Why the chmod: apt-get run by root downloads as the user _apt.
  chmod 755 "$download"
  local -a get=("${APT_GET[@]}" download -o APT::Sandbox::User=root "$package")
  if ! (cd "$download" && "${get[@]}" >/dev/null 2>&1); then
    update_lists "$package"
    (cd "$download" && "${get[@]}" >&2) || setup_failed "could not download $package"
  fi
  mkdir -p "$UNPACKED_DIR"
  dpkg-deb -x "$download/${package}"_*.deb "$UNPACKED_DIR" || setup_failed "could not unpack $package"
  rm -rf "$download"
}

# Headers for the backend CUDNN, of use only beside those of cuDNN in a CUDA toolkit. They come from
# the Python package index, as no Debian package has them; without them the backend is refused.
CUDNN_FRONTEND=nvidia-cudnn-frontend==1.32.0
unpack_cudnn_frontend() {
  local include
  for include in /usr/local/cuda/include /usr/include; do
    [[ ! -f "$include/cudnn_frontend.h" ]] || return 0
  done
  [[ ! -f "$UNPACKED_DIR/usr/include/cudnn_frontend.h" ]] || return 0
  [[ -f /usr/local/cuda/include/cudnn.h || -f /usr/include/cudnn.h ]] || return 0
  say "unpacking the headers of $CUDNN_FRONTEND into build/deps"
  local download
  download=$(mktemp -d)
  if python3 -m pip -q --retries 10 download --no-deps --only-binary=:all: -d "$download" \
    "$CUDNN_FRONTEND" >/dev/null 2>&1; then
    mkdir -p "$UNPACKED_DIR/usr"
    python3 - "$download"/*.whl "$UNPACKED_DIR/usr" <<'PYTHON'
import pathlib, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
names = wheel.namelist()
target = pathlib.Path(sys.argv[2])
wheel.extractall(target, [name for name in names if name.startswith("include/")])
# What is compiled into the program goes with its licences.
folder = target / "share/doc/cudnn-frontend"
folder.mkdir(parents=True, exist_ok=True)
licences = sorted(name for name in names if ".dist-info/licenses/" in name and name[-1] != "/")
(folder / "copyright").write_bytes(b"\n".join(wheel.read(name) for name in licences))
PYTHON
  else
    say "going on without $CUDNN_FRONTEND: pip cannot fetch it"
  fi
  rm -rf "$download"
}

# Packages by whose own code the tests check files of other tools, in build/deps/python. Some of them
# without what they need for running: their models and readers are all that is used.
TEST_PYTHON_PACKAGES=(pydantic dateparser)
TEST_PYTHON_PACKAGES_ALONE=(flashinfer-bench cuda-bench apache-otava==0.8.0 prometheus-client==0.26.0)
unpack_test_packages() {
  local target="$UNPACKED_DIR/python"
  local list="${TEST_PYTHON_PACKAGES[*]} ${TEST_PYTHON_PACKAGES_ALONE[*]}"
  [[ "$(cat "$target/packages.txt" 2>/dev/null)" != "$list" ]] || return 0
  local version
  version="$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" || return 0
  say "unpacking ${TEST_PYTHON_PACKAGES[*]} ${TEST_PYTHON_PACKAGES_ALONE[*]} into build/deps/python"
  local -a get=(python3 -m pip -q --retries 10 install --only-binary=:all: --python-version "$version"
    --upgrade --target "$target.new")
  mkdir -p "$UNPACKED_DIR"
  if "${get[@]}" "${TEST_PYTHON_PACKAGES[@]}" >/dev/null 2>&1 &&
    "${get[@]}" --no-deps "${TEST_PYTHON_PACKAGES_ALONE[@]}" >/dev/null 2>&1; then
    echo "$list" >"$target.new/packages.txt"
    rm -rf "$target"
    mv "$target.new" "$target"
  else
    say "going on without them: pip cannot fetch them"
    rm -rf "$target.new"
  fi
}

# What the label real-packages asks for the truth about other projects' files and builders. They need
# torch, so they get a Python of their own: 3 GB to fetch and 6 GB on disk, which is why it is outside
# the repository and only for that label. transformers as long as it calls the cache what
# compressed-tensors looks for.
REAL_PACKAGES=(torch==2.15.0 transformers==4.57.6 accelerate==1.15.0 compressed-tensors==0.20.0
  nvidia-modelopt==0.47.0 apache-tvm-ffi==0.1.15.post2 numpy)
# Prints the interpreter.
real_packages_python() {
  local digest folder
  digest="$(printf '%s\n' "${REAL_PACKAGES[@]}" | sha256sum | cut -c1-12)"
  folder="${XDG_CACHE_HOME:-$HOME/.cache}/attnbench-packages/$digest"
  if [[ ! -f "$folder/complete" ]]; then
    say "installing ${REAL_PACKAGES[*]} into $folder"
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    /usr/bin/python3 -m venv "$folder" >&2 ||
      setup_failed "no virtual environment in $folder (apt-get install python3-venv)"
    "$folder/bin/python" -m pip -q install "${REAL_PACKAGES[@]}" >&2 ||
      setup_failed "pip could not install ${REAL_PACKAGES[*]}"
    touch "$folder/complete"
  fi
  echo "$folder/bin/python"
}

install_dependencies() {
  command -v dpkg-query >/dev/null ||
    setup_failed "not a Debian or Ubuntu system; please install: ${PACKAGES[*]} libvalijson-dev node-d3"
  local -a missing
  mapfile -t missing < <(missing_packages "${PACKAGES[@]}")
  [[ ${#missing[@]} -eq 0 ]] || install_packages "${missing[@]}"
  has_valijson || unpack_package libvalijson-dev
  has_d3 || unpack_package node-d3
  # Once: what cannot be fetched is not tried again at every start.
  [[ -f "$BUILD_DIR/build.ninja" ]] || unpack_cudnn_frontend
  # A build that was configured without them, by another script, is to look again.
  ! install_optional_packages "${OPTIONAL_PACKAGES[@]}" || rm -f "$BUILD_DIR/build.ninja"
}

# Installs those of the packages that are missing; status 1 when none was. A package that cannot be had does
# not keep the others away. Where tests that lack their tools fail instead of being skipped (CI), a network
# that is away for two minutes is waited for.
install_optional_packages() {
  local -a missing pauses=(0)
  [[ -z "${CI:-}" ]] || pauses=(0 30 90)
  local pause package status=1
  for pause in "${pauses[@]}"; do
    mapfile -t missing < <(missing_packages "$@")
    [[ ${#missing[@]} -gt 0 ]] || break
    sleep "$pause"
    if [[ ${#missing[@]} -gt 1 ]] && (install_packages "${missing[@]}"); then  # at once is quicker
      status=0
      continue
    fi
    for package in "${missing[@]}"; do
      if (install_packages "$package"); then
        status=0
      else
        say "going on without $package"
      fi
    done
  done
  return "$status"
}

# Runs a build command with its output in build/build.log; says what it does when that takes more
# than a second, and shows the end of the log on failure.
logged() {
  local doing="$1"
  shift
  # Why 9>&-: a sleep that outlives its parent must not hold the lock.
  (sleep 1 && say "$doing (log: $BUILD_LOG)") 9>&- &
  local announcer=$!
  local status=0
  "$@" >>"$BUILD_LOG" 2>&1 || status=$?
  kill "$announcer" 2>/dev/null || true
  wait "$announcer" 2>/dev/null || true
  if [[ $status -ne 0 ]]; then
    tail -n 40 "$BUILD_LOG" >&2
    setup_failed "failed: $* (the whole log is $BUILD_LOG)"
  fi
}

# A build folder that came along with a moved or copied source tree is of no use.
forget_foreign_configuration() {
  local cache="$BUILD_DIR/CMakeCache.txt"
  [[ -f "$cache" ]] || return 0
  grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ATTNBENCH_ROOT" "$cache" ||
    rm -rf "$cache" "$BUILD_DIR/CMakeFiles" "$BUILD_DIR/build.ninja"
}

# Brings the given targets up to date. Callers that come at the same time wait for each other.
build() {
  BUILD_LOG="$BUILD_DIR/build.log"
  mkdir -p "$BUILD_DIR" || setup_failed "cannot create $BUILD_DIR"
  exec 9>"$BUILD_DIR/.lock"
  if ! flock -n 9; then
    say "waiting for another set-up of $ATTNBENCH_ROOT"
    flock 9
  fi
  install_dependencies
  forget_foreign_configuration
  : >"$BUILD_LOG"
  # Ninja configures again by itself when a CMake file changed.
  if [[ ! -f "$BUILD_DIR/build.ninja" ]]; then
    logged "configuring" \
      cmake -S "$ATTNBENCH_ROOT" -B "$BUILD_DIR" -G Ninja "${CMAKE_OPTIONS[@]}"
  fi
  while_building &
  logged "building" ninja -C "$BUILD_DIR" "$@"
  wait
  exec 9>&-
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  mkdir -p "$BUILD_DIR"
  install_dependencies
fi
