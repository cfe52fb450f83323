#!/bin/sh
# Makes a folder of programs that run on a GPU machine which has libtorch's CUDA build in its python3, but none of the
# libraries of Debian 12 that the programs link. There, tools/gpu_proof.sh runs what is in it.
#
#   tools/gpu_pack.sh [FOLDER]                 into FOLDER, which it replaces (default: build/gpu-pack)
#   tools/gpu_pack.sh --build build/dev        of another build (default: build/release, which must be configured)
#   tools/gpu_pack.sh --with first_question    and this program, too; may be repeated
#   tools/gpu_pack.sh --tests 'ddp|device'     only tests whose names match this regular expression of CTest
#   tools/gpu_pack.sh --archive                and FOLDER.tar.xz, a quarter as large, as what travels; there:
#                                              python3 -m tarfile -e FOLDER.tar.xz
#   tools/gpu_pack.sh --limit 100              MiB that may travel (default: 60); 0: as many as it takes
#
# It builds what it takes along: lockstep, lockstep-torch, lockstep-bench, lockstep-explain, the plug-in
# liblockstep_cuda.so, and each test with the label `cuda` with the programs that it starts. The folder works wherever
# it is put:
#
#   bin/        the programs, stripped and without run paths, and the plug-in
#   lib/        the shared libraries that they need: all but glibc, g++'s, and libtorch's
#   recipes/    what `lockstep train` reads
#   tools/, bench/   gpu_proof.sh and the scripts that it starts
#   run         run PROGRAM [ARGUMENT...]: starts bin/PROGRAM with those libraries and python3's libtorch
#   pack.json   the commit, and the tests with their time limits
#
# On the other machine: x86_64, glibc and libstdc++ as new as here or newer, and python3 with torch of the same
# version. Exit code: 0; 1 if something is missing, fails to build or is too large; 2 for a mistake on this line.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release
programs="lockstep lockstep-torch lockstep-bench lockstep-explain"
limit_mib=60
folder=""
pattern=.
archive=no

fail() {
  echo "gpu_pack: $*" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case $1 in
    --archive) archive=yes ;;
    --build | --with | --limit | --tests)
      [ $# -gt 1 ] || { echo "gpu_pack: $1 needs a value" >&2 && exit 2; }
      case $1 in
        --build) build=$(cd "$2" && pwd) || exit 1 ;;
        --with) programs="$programs $2" ;;
        --limit) limit_mib=$2 ;;
        --tests) pattern=$2 ;;
      esac
      shift
      ;;
    -*)
      echo "gpu_pack: unknown option '$1'; it takes --build, --with, --limit, --tests, --archive and a folder" >&2
      exit 2
      ;;
    *) folder=$1 ;;
  esac
  shift
done
: "${folder:=$root/build/gpu-pack}"
[ -e "$build/build.ninja" ] || fail "$build is not configured; call \`make build\` first, or name a build by --build"
case $limit_mib in
  '' | *[!0-9]*) echo "gpu_pack: --limit $limit_mib is no number of MiB" >&2 && exit 2 ;;
esac

# tests_of WHAT: of the tests labelled cuda, their names, or (once they are built) what pack.json says of them.
tests_of() {
  ctest --test-dir "$build" -L '^cuda$' -R "$pattern" --show-only=json-v1 | python3 -c '
import json, os, subprocess, sys
tests = []
for test in json.load(sys.stdin)["tests"]:
    properties = {x["name"]: x["value"] for x in test["properties"]}
    program, *arguments = test.get("command", [test["name"]])
    tests.append({"name": test["name"], "program": os.path.basename(program),
                  "arguments": [x for x in arguments if not x.startswith("--gtest_output")],
                  "environment": properties.get("ENVIRONMENT", []), "timeout_s": properties["TIMEOUT"]})
if sys.argv[1] == "names":
    print(*(x["name"] for x in tests))
elif sys.argv[1] == "programs":
    print(*sorted({x["program"] for x in tests}))
else:
    git = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, cwd=sys.argv[2]).stdout.strip()
    print(json.dumps({"commit": git("rev-parse", "--short=12", "HEAD"),
                      "modified": git("status", "--porcelain", "--untracked-files=no") != "",
                      "tests": tests}, indent=1))' "$1" "$root"
}

# --- build ------------------------------------------------------------------------------------------

names=$(tests_of names)
[ -n "$names" ] || fail "$build has no test with the label cuda that matches '$pattern'; was it configured without" \
  "libtorch or without tests?"
ninja -C "$build" -t targets all | grep -q '^lockstep_cuda:' ||
  fail "$build does not build the plug-in: nvcc was not found; install CUDA's compiler, and configure again"
"$root/tools/build.py" "$build" -j "${JOBS:-$("$root/tools/jobs.sh")}" $programs lockstep_cuda $names
tests=$(tests_of programs)
# A test needs beside it whatever program its build waits for.
beside=$(for test in $tests; do ninja -C "$build" -t inputs "bin/$test"; done |
  sed -n 's|^bin/\([^/]*\)$|\1|p' | sort -u)

# --- copy -------------------------------------------------------------------------------------------

new=$folder.new.$$
trap 'rm -rf "$new" "$new.tar.xz"' EXIT
rm -rf "$new"
mkdir -p "$new/bin" "$new/lib" "$new/tools" "$new/bench"
torch=$(sed -n 's/^LOCKSTEP_TORCH:PATH=//p' "$build/CMakeCache.txt")
for program in $programs $tests $beside liblockstep_cuda.so; do
  [ -e "$new/bin/$program" ] && continue
  strip -o "$new/bin/$program" "$build/bin/$program"
  echo "file(RPATH_REMOVE FILE \"$new/bin/$program\")" >"$new/rpath.cmake"
  cmake -P "$new/rpath.cmake" >/dev/null # the run path of the build names folders of this machine
done
rm "$new/rpath.cmake"

# Newer ones are on the other machine (glibc, g++), or belong to its libtorch.
needed=$(LD_LIBRARY_PATH="$torch/lib" ldd "$new"/bin/* | sed -n 's/.* => \(\/.*\) (0x.*/\1/p' | sort -u)
for library in $needed; do
  case $library in
    */libc.so.* | */libm.so.* | */libdl.so.* | */libpthread.so.* | */librt.so.* | */libutil.so.* | */libresolv.so.* | */ld-linux*) ;;
    */libstdc++.so.* | */libgcc_s.so.* | */libtorch* | */libc10* | */libgomp* | */libcu*) ;;
    *) cp -L "$library" "$new/lib/" && strip --strip-unneeded "$new/lib/${library##*/}" 2>/dev/null || true ;;
  esac
done
missing=$(LD_LIBRARY_PATH="$torch/lib:$new/lib" ldd "$new"/bin/* | sed -n 's/^\t\(.*\) => not found/\1/p' |
  grep -v '^libcudart' | sort -u)
[ -z "$missing" ] || fail "the programs need $(echo $missing), which is not on this machine"

cp -R "$root/recipes" "$new/recipes"
cp "$root/tools/gpu_proof.sh" "$root/tools/gpu_proof.py" "$new/tools/"
for script in gpu_parity gpu_start; do
  [ ! -e "$root/bench/$script.py" ] || cp "$root/bench/$script.py" "$new/bench/"
done
tests_of all >"$new/pack.json"
cat >"$new/run" <<'RUN'
#!/bin/sh
# run PROGRAM [ARGUMENT...]: bin/PROGRAM with the libraries of this folder and the libtorch of python3, or of
# LOCKSTEP_TORCH.
here=$(cd "$(dirname "$0")" && pwd)
ask='import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")'
torch=${LOCKSTEP_TORCH:-$(python3 -c "$ask")}
if [ ! -e "$torch/lib/libtorch_cpu.so" ]; then
  echo "run: no libtorch in '$torch'; install torch for python3, or set LOCKSTEP_TORCH to its folder" >&2
  exit 1
fi
program=$1
shift
LD_LIBRARY_PATH=$torch/lib:$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/bin/$program" "$@"
RUN
chmod +x "$new/run"

kib=$(du -sk "$new" | cut -f 1)
what="$((kib / 1024)) MiB"
if [ $archive = yes ]; then
  command -v xz >/dev/null || fail "--archive needs xz: apt-get install xz-utils"
  # All programs hold the same archives of lockstep: a window as large as several of them finds that.
  tar -C "$new" --transform "s|^\.|${folder##*/}|" --owner 0 --group 0 -cf - . |
    xz -T1 --lzma2=preset=6,dict=64MiB >"$new.tar.xz"
  kib=$(du -k "$new.tar.xz" | cut -f 1)
  what="$what, as an archive $((kib / 1024)) MiB"
fi
if [ "$limit_mib" -gt 0 ] && [ "$kib" -gt $((limit_mib * 1024)) ]; then
  du -k "$new"/*/* | sort -rn | head -n 12 >&2
  fail "$((kib / 1024)) MiB are more than $limit_mib; take fewer by --tests, make an --archive, or allow more by --limit"
fi
rm -rf "$folder" "$folder.tar.xz"
mv "$new" "$folder"
[ $archive = no ] || mv "$new.tar.xz" "$folder.tar.xz"
trap - EXIT
echo "gpu_pack: $folder: $what, $(echo $names | wc -w) test programs"
