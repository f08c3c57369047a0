#!/usr/bin/env bash
# Installs the system packages that are missing, from the distribution, and nothing else.
#
#   tools/setup.sh build    compiler and libraries that `make build` needs
#   tools/setup.sh heif     and what `make build HEIF=1` needs on top, to decode HEIC and AVIF
#   tools/setup.sh test     and what `make test` and `make lint` need on top
#   tools/setup.sh bench    and what `make bench` needs on top; Debian also starts nginx as a service where an init runs, which nobody here needs
#   tools/setup.sh python   prints the Python interpreter to make the virtual environment from
#
# Debian 12 and Ubuntu 24.04 are served with apt-get, as root or through sudo. Elsewhere it prints what to install; once that is done,
# STOKER_SKIP_SETUP=1 skips the check.
set -euo pipefail

build_packages=(g++ cmake ninja-build pkg-config python3-venv python3-dev ca-certificates
  libcurl4-openssl-dev libssl-dev libfmt-dev libsimdjson-dev libspng-dev libhwy-dev libxxhash-dev libjpeg-dev zlib1g-dev libzstd-dev
  libwebp-dev libtiff-dev)
test_packages=(git clang-14 clang-format-14 libclang-rt-14-dev llvm-14 libgtest-dev libgmock-dev libbenchmark-dev)
bench_packages=(nginx-light wrk openssl util-linux)

say() { printf 'setup: %s\n' "$*" >&2; }

fits() {  # a Python that is new enough, can make virtual environments, and has the headers for the extension
  "$1" -c '
import ensurepip, os, sys, sysconfig, venv
if not (3, 11) <= sys.version_info < (3, 15) or not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    sys.exit(1)
print(sys.executable)' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
    fits "$candidate" && return 0
  done
  say "no Python from 3.11 to 3.14 with venv and headers; install one, or name it: make build PYTHON=/path/to/python3"
  return 1
}

heif_packages() {  # the library, and its codecs where they are plugins, which --no-install-recommends would leave out
  case $(. /etc/os-release && echo "${VERSION_CODENAME:-}") in
    bookworm) echo libheif-dev ;;
    *) echo libheif-dev libheif-plugin-libde265 libheif-plugin-aomdec ;;
  esac
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

install_missing() {
  local missing=() package
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "this system has no apt-get. Install what corresponds to these Debian packages, then run again with STOKER_SKIP_SETUP=1:"
    say "  $*"
    return 1
  fi
  for package in "$@"; do
    # A Python of one's own serves as well as the distribution's.
    case $package in python3-venv | python3-dev) find_python >/dev/null 2>&1 && continue ;; esac
    is_installed "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return 0
  fi

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "not root, and no sudo. As root, run:  apt-get install ${missing[*]}"
      return 1
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
  for package in "${missing[@]}"; do
    is_installed "$package" || { say "apt-get did not install $package"; return 1; }
  done
}

case ${1:-} in
  python) find_python ;;
  build) [ -n "${STOKER_SKIP_SETUP:-}" ] || install_missing "${build_packages[@]}" ;;
  heif) [ -n "${STOKER_SKIP_SETUP:-}" ] || install_missing "${build_packages[@]}" $(heif_packages) ;;
  test) [ -n "${STOKER_SKIP_SETUP:-}" ] || install_missing "${build_packages[@]}" "${test_packages[@]}" $(heif_packages) ;;
  bench) [ -n "${STOKER_SKIP_SETUP:-}" ] || install_missing "${bench_packages[@]}" ;;
  *) say "usage: tools/setup.sh build|heif|test|bench|python"; exit 2 ;;
esac
