#!/usr/bin/env python3
"""Collects the MPIs that `lockstep bench allreduce --peer` measures into one folder.

    bench/mpi_pack.py build/mpi
    LOCKSTEP_MPI_HOME=build/mpi lockstep bench allreduce --peer gloo,openmpi,mpich,intelmpi

The folder works from any place, on any x86_64 machine with glibc 2.36 or newer, and nothing is installed: Open MPI and MPICH are
unpacked from Debian's packages (apt-get download), Intel MPI from its wheels on PyPI. It holds what ranks on one host need and
nothing else. Of each MPI:

    mpiexec   starts ranks, with the settings that make it find its files where it lies
    mpi_peer  bench/mpi_peer.c, compiled against it
    bin lib   what these need
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PEER_SOURCE = Path(__file__).resolve().parent / "mpi_peer.c"
TRIPLET = "x86_64-linux-gnu"

DEBIAN_PACKAGES = {
    "openmpi": ["openmpi-bin", "openmpi-common", "libopenmpi3", "libopenmpi-dev", "libpmix2", "libevent-core-2.1-7",
                "libevent-pthreads-2.1-7", "libhwloc15", "libudev1", "zlib1g", "libnl-3-200", "libnl-route-3-200", "libmunge2"],
    "mpich": ["mpich", "libmpich12", "libmpich-dev", "libucx0", "libslurm38", "libnuma1", "libhwloc15", "libudev1"],
}
WHEELS = ["impi-rt==2021.19.0", "impi-devel==2021.19.0"]

# What the loader of every machine brings. Carrying another machine's would break it.
OF_THE_SYSTEM = re.compile(r"^(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libgcc_s|libresolv|libutil)\.so")

# Open MPI's components for other networks, file systems and job managers, and what only they need.
OPENMPI_LEFT_OUT = re.compile(
    r"ucx|ofi|openib|psm|verbs|slurm|flux|jsm|gridengine|monitoring|java|mpifh|usempi|_cxx|romio|ompio|fcoll|fbtl|sharedfp"
    r"|mca_fs_|mca_io_|spml|scoll|sshmem|memheap|vprotocol|oshmem|msgq|atomic|libompitrace|libopal-java")

MPIEXEC_HEAD = """#!/bin/sh
# Written by bench/mpi_pack.py.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PATH=$here/bin:$PATH
export PATH LD_LIBRARY_PATH
"""
MPIEXEC_TAIL = {
    "openmpi": """OPAL_PREFIX=$here
OPAL_BINDIR=$here/bin
OPAL_LIBDIR=$here/lib
OPAL_PKGLIBDIR=$here/lib/openmpi3
OPAL_DATADIR=$here/share
OPAL_PKGDATADIR=$here/share/openmpi
OPAL_SYSCONFDIR=$here/etc
PMIX_PREFIX=$here
PMIX_INSTALL_PREFIX=$here
PMIX_MCA_mca_base_component_path=$here/lib/pmix
OMPI_MCA_mca_base_component_path=$here/lib/openmpi3
export OPAL_PREFIX OPAL_BINDIR OPAL_LIBDIR OPAL_PKGLIBDIR OPAL_DATADIR OPAL_PKGDATADIR OPAL_SYSCONFDIR PMIX_PREFIX
export PMIX_INSTALL_PREFIX PMIX_MCA_mca_base_component_path OMPI_MCA_mca_base_component_path
exec "$here/bin/orterun" "$@"
""",
    "mpich": """UCX_MODULE_DIR=$here/lib/ucx
UCX_WARN_UNUSED_ENV_VARS=n
export UCX_MODULE_DIR UCX_WARN_UNUSED_ENV_VARS
exec "$here/bin/mpiexec.hydra" "$@"
""",
    "intelmpi": """I_MPI_ROOT=$here
export I_MPI_ROOT
exec "$here/bin/mpiexec.hydra" "$@"
""",
}


def run(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"mpi_pack: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def needed_by(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", path))


def take(source, target):
    """One file, under the name it is asked for by, without symbols for debuggers."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source.resolve(), target)
    os.chmod(target, 0o755 if os.access(target, os.X_OK) else 0o644)
    if is_elf(target):
        run("strip", "--strip-unneeded", target)


def take_libraries(files, libraries, target):
    """All that `files` are linked against, directly or not, out of the folders `libraries`."""
    waiting, seen = list(files), set()
    while waiting:
        for name in needed_by(waiting.pop()):
            if name in seen or OF_THE_SYSTEM.match(name):
                continue
            seen.add(name)
            found = next((folder / name for folder in libraries if (folder / name).exists()), None)
            if found is None:
                sys.exit(f"mpi_pack: {name} is in none of the packages; name the one that has it in DEBIAN_PACKAGES")
            if not (target / name).exists():
                take(found, target / name)
            waiting.append(target / name)


def unpack_debian(name, work):
    root = work / name
    packages = work / (name + "-packages")
    packages.mkdir()
    run("apt-get", "download", "-o", "APT::Sandbox::User=root", *DEBIAN_PACKAGES[name], cwd=packages)
    for package in sorted(packages.glob("*.deb")):
        run("dpkg", "-x", package, root)
    return root, [root / "usr/lib" / TRIPLET, root / "lib" / TRIPLET, root / "usr/lib" / TRIPLET / "openmpi/lib",
                  root / "usr/lib" / TRIPLET / "pmix2/lib"]


def unpack_wheels(work):
    wheels = work / "wheels"
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", wheels, *WHEELS)
    root = work / "intelmpi"
    for wheel in sorted(wheels.glob("*.whl")):
        unpacked = work / wheel.stem
        run(sys.executable, "-m", "zipfile", "-e", wheel, unpacked)
        for data in unpacked.glob("*.data/data"):
            shutil.copytree(data, root, dirs_exist_ok=True)
    return root


def compile_peer(home, include, library):
    run("cc", "-std=gnu11", "-O2", f"-I{include}", PEER_SOURCE, "-o", home / "mpi_peer", library, "-Wl,-rpath,$ORIGIN/lib",
        "-Wl,--allow-shlib-undefined", "-s")


def write_mpiexec(home, name):
    script = home / "mpiexec"
    script.write_text(MPIEXEC_HEAD + MPIEXEC_TAIL[name])
    script.chmod(0o755)


def pack_openmpi(home, work):
    root, libraries = unpack_debian("openmpi", work)
    usr = root / "usr"
    for program in ("orterun", "orted"):
        take(usr / "bin" / program, home / "bin" / program)
    for component in (usr / "lib" / TRIPLET / "openmpi/lib/openmpi3").glob("mca_*.so"):
        if not OPENMPI_LEFT_OUT.search(component.name):
            take(component, home / "lib/openmpi3" / component.name)
    for component in (usr / "lib" / TRIPLET / "pmix2/lib/pmix").glob("*.so"):
        if not OPENMPI_LEFT_OUT.search(component.name):
            take(component, home / "lib/pmix" / component.name)
    shutil.copytree(usr / "share/openmpi", home / "share/openmpi", dirs_exist_ok=True)
    shutil.copytree(root / "etc/openmpi", home / "etc", dirs_exist_ok=True)
    library = usr / "lib" / TRIPLET / "libmpi.so.40"
    compile_peer(home, usr / "lib" / TRIPLET / "openmpi/include", library)
    elf = [home / "mpi_peer", *(home / "bin").iterdir(), *(home / "lib").glob("*/*.so")]
    take_libraries(elf, libraries, home / "lib")


def pack_mpich(home, work):
    root, libraries = unpack_debian("mpich", work)
    usr = root / "usr"
    for program in ("mpiexec.hydra", "hydra_pmi_proxy"):
        take(usr / "bin" / program, home / "bin" / program)
    take(usr / "lib" / TRIPLET / "ucx/libuct_cma.so.0", home / "lib/ucx/libuct_cma.so.0")
    compile_peer(home, usr / "include" / TRIPLET / "mpich", usr / "lib" / TRIPLET / "libmpich.so.12")
    elf = [home / "mpi_peer", *(home / "bin").iterdir(), *(home / "lib/ucx").iterdir()]
    take_libraries(elf, libraries, home / "lib")


def pack_intelmpi(home, work):
    root = unpack_wheels(work)
    for program in ("mpiexec.hydra", "hydra_bstrap_proxy", "hydra_pmi_proxy"):
        os.chmod(root / "bin" / program, 0o755)
        take(root / "bin" / program, home / "bin" / program)
    take(root / "lib/libmpi.so.12", home / "lib/libmpi.so.12")
    for table in (root / "opt/mpi/etc").glob("tuning_*_shm.dat"):  # which collective at which size, per processor
        take(table, home / "opt/mpi/etc" / table.name)
    compile_peer(home, root / "include", home / "lib/libmpi.so.12")


PACKERS = {"openmpi": pack_openmpi, "mpich": pack_mpich, "intelmpi": pack_intelmpi}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where they go; it must not hold them yet")
    parser.add_argument("--only", choices=sorted(PACKERS), action="append", help="this one (may be given again); default: all")
    arguments = parser.parse_args()
    for name in arguments.only or PACKERS:
        home = arguments.folder / name
        if home.exists():
            sys.exit(f"mpi_pack: {home} is there already; remove it or name another folder")
        with tempfile.TemporaryDirectory(prefix="lockstep-mpi-") as work:
            built = Path(work) / "built"
            built.mkdir()
            PACKERS[name](built, Path(work))
            write_mpiexec(built, name)
            arguments.folder.mkdir(parents=True, exist_ok=True)
            shutil.move(built, home)
        size = sum(file.stat().st_size for file in home.rglob("*") if file.is_file())
        print(f"{name}: {size / 1e6:.1f} MB in {home}")


if __name__ == "__main__":
    main()
