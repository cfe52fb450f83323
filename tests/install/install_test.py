#!/usr/bin/env python3
"""Installs lockstep into a temporary folder, moves it elsewhere, and uses it as a stranger does: find_package,
pkg-config, add_subdirectory, and the installed programs.

    tests/install/install_test.py --build build/release --torch FOLDER [--compiler c++] [unittest's arguments]

It is lean on purpose: one project compiles all of torch/torch.h (examples/06_trainer.cpp), the others a small
program. The project that uses add_subdirectory compiles and links its own file, but does not compile lockstep a
second time, which would double the time of the whole build: it borrows the archives of the build that is tested.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RANKS = 4
BUNDLED = "lib/lockstep/libtorch/torch"  # where the component libtorch is installed
options = None


def clean_environment(**more):
    """Without what would find lockstep or libtorch by another way than the one under test."""
    hidden = {"LOCKSTEP_TORCH", "CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "DESTDIR", "CXXFLAGS"}
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    return {**environment, **{k: str(v) for k, v in more.items()}}


def run(*command, cwd=None, env=None):
    """(exit code, stdout and stderr)"""
    result = subprocess.run([str(c) for c in command], cwd=cwd, env=env or clean_environment(), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500, check=False)
    return result.returncode, result.stdout


class InstalledPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(prefix="lockstep-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        # Staged as a packager does it, then moved as a user does it: no path of the first place may matter.
        code, text = run("cmake", "--install", options.build, "--prefix", "/opt/first",
                         env=clean_environment(DESTDIR=cls.work / "stage"))
        if code != 0:
            raise AssertionError(f"cmake --install failed ({code}):\n{text}")
        cls.prefix = cls.work / "moved"
        shutil.move(cls.work / "stage" / "opt" / "first", cls.prefix)
        cls.lockstep = cls.prefix / "bin" / "lockstep"

    def check(self, *command, **more):
        code, text = run(*command, **more)
        self.assertEqual(code, 0, f"{' '.join(map(str, command))}\n{text}")
        return text

    def project(self, kind, name):
        folder = self.work / name
        shutil.copytree(HERE / kind, folder)
        return folder

    def configure(self, folder, *arguments, env=None):
        return run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release",
                   f"-DCMAKE_CXX_COMPILER={options.compiler}", *arguments, env=env)

    def cached(self):
        """The compiler's cache, where there is one: a second run of this test compiles nothing."""
        ccache = shutil.which("ccache")
        more = {"CMAKE_CXX_COMPILER_LAUNCHER": ccache} if ccache else {}
        return clean_environment(CCACHE_BASEDIR=self.work, CCACHE_NOHASHDIR=1, **more)

    def assert_all_ranks(self, text, pattern):
        ranks = sorted(int(rank) for rank in re.findall(pattern, text))
        self.assertEqual(ranks, list(range(RANKS)), text)

    # --- projects ---------------------------------------------------------------------------------

    def test_a_trainer_is_built_with_find_package_and_runs_on_four_ranks(self):
        folder = self.project("project", "trainer")
        lines = [x for x in (folder / "CMakeLists.txt").read_text().splitlines() if x]
        self.assertLessEqual(len(lines), 10)
        shutil.copy(ROOT / "examples" / "06_trainer.cpp", folder / "my_program.cpp")
        code, text = self.configure(folder, f"-DCMAKE_PREFIX_PATH={self.prefix}", env=self.cached())
        self.assertEqual(code, 0, text)
        self.check("cmake", "--build", folder / "build", env=self.cached())
        text = self.check(self.lockstep, "run", "--nproc-per-node", RANKS, folder / "build" / "my_program", cwd=folder)
        self.assert_all_ranks(text, r"rank (\d): \d+ steps, it learned .*, the same model on all ranks")

    def test_pkg_config_builds_a_small_program(self):
        if not shutil.which("pkg-config") and "pkgconfig" not in os.environ.get("LOCKSTEP_REQUIRE", "").split(","):
            self.skipTest("no pkg-config here")
        env = clean_environment(PKG_CONFIG_PATH=self.prefix / "lib" / "pkgconfig")
        self.assertEqual(self.check("pkg-config", "--modversion", "lockstep", env=env).strip(), version())
        cflags = self.check("pkg-config", "--cflags", "lockstep", env=env).split()
        libs = self.check("pkg-config", "--libs", "lockstep", env=env).split()
        folder = self.project("subproject", "small")
        compiler = [x for x in (shutil.which("ccache"), options.compiler) if x]
        self.check(*compiler, *cflags, "-c", "my_program.cpp", "-o", "my_program.o", cwd=folder, env=self.cached())
        self.check(options.compiler, "my_program.o", "-o", "my_program", *libs, cwd=folder)
        text = self.check(self.lockstep, "run", "--nproc-per-node", RANKS, "./my_program", cwd=folder)
        self.assert_all_ranks(text, r"rank (\d): the sum is 10\b")
        # The whole of each archive: every symbol that any part of lockstep needs is in the list.
        archives = [x for x in libs if x.startswith("-llockstep_")]
        whole = [f"-L{self.prefix / 'lib'}", "-Wl,--whole-archive", *archives, "-Wl,--no-whole-archive"]
        self.check(options.compiler, "my_program.o", "-o", "whole", *whole, *libs, cwd=folder)

    def test_a_project_takes_lockstep_as_a_subdirectory(self):
        folder = self.project("subproject", "outer")
        (folder / "lockstep").symlink_to(ROOT)
        build = folder / "build"
        code, text = self.configure(folder, f"-DLOCKSTEP_TORCH={options.torch}", env=self.cached())
        self.assertEqual(code, 0, text)
        self.check("ninja", "-C", build, "CMakeFiles/my_program.dir/my_program.cpp.o", env=self.cached())
        plan = self.check("ninja", "-C", build, "-n")
        self.assertIn("Linking CXX executable my_program", plan)
        self.assertNotIn("gtest", plan)
        self.assertNotIn("06_trainer", plan)
        self.link_with_borrowed_archives(build)
        text = self.check(self.lockstep, "run", "--nproc-per-node", RANKS, build / "my_program")
        self.assert_all_ranks(text, r"rank (\d): the sum is 10\b")
        # The launcher is not built unasked, but it can be asked for; nothing of lockstep is installed unasked.
        self.assertNotIn("bin/lockstep", plan)
        self.assertIn("bin/lockstep", self.check("ninja", "-C", build, "-n", "lockstep"))
        self.check("cmake", "--install", build, "--prefix", folder / "installed")
        self.assertFalse((folder / "installed").exists())

    def link_with_borrowed_archives(self, build):
        link = self.check("ninja", "-C", build, "-t", "commands", "my_program").splitlines()[-1]
        archives = set(re.findall(r"\blockstep/(\S+\.a)\b", link))
        names = {Path(a).name for a in archives}
        for area in ("base", "comm", "ddp", "data", "models", "weights", "checkpoint", "train"):
            self.assertIn(f"liblockstep_{area}.a", names)
        for archive in archives:
            (build / "lockstep" / archive).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(options.build / archive, build / "lockstep" / archive)
        self.check("sh", "-c", link, cwd=build)

    # --- the CUDA plug-in -------------------------------------------------------------------------

    def test_the_plugin_is_installed_where_it_is_built_and_programs_find_it(self):
        installed = self.prefix / "lib/lockstep/liblockstep_cuda.so"
        nvcc = re.search(r"^LOCKSTEP_NVCC:\w+=(.*)$", (options.build / "CMakeCache.txt").read_text(), re.MULTILINE)
        if not nvcc or nvcc.group(1).endswith("NOTFOUND"):
            self.assertFalse(installed.exists())
            return
        self.assertTrue(installed.is_file())
        self.assertEqual(installed.read_bytes(), (options.build / "bin/liblockstep_cuda.so").read_bytes())
        # Where a rank's GPU is used, lockstep asks this; there is none here, so a program asks for itself.
        folder = self.project("project", "finds_plugin")
        (folder / "my_program.cpp").write_text(
            "#include <iostream>\n#include <string>\n#include <lockstep/device/device.h>\n"
            "namespace lockstep::device { std::string plugin_state(); }\n"
            "int main() {\n"
            "  lockstep::local_device();\n"
            "  std::cout << lockstep::device::plugin_state() << std::endl;\n}\n")
        code, text = self.configure(folder, f"-DCMAKE_PREFIX_PATH={self.prefix}", env=self.cached())
        self.assertEqual(code, 0, text)
        self.check("cmake", "--build", folder / "build", env=self.cached())
        self.assertEqual(Path(self.check(folder / "build" / "my_program").strip()), installed)
        # By pkg-config's flags; and where there is none.
        env = clean_environment(PKG_CONFIG_PATH=self.prefix / "lib" / "pkgconfig")
        if shutil.which("pkg-config"):
            libs = self.check("pkg-config", "--libs", "lockstep", env=env).split()
            self.check(options.compiler, *folder.glob("build/**/my_program.cpp.o"), "-o", "by_pkg_config", *libs,
                       cwd=folder)
            self.assertEqual(Path(self.check(folder / "by_pkg_config").strip()).resolve(), installed.resolve())
        kept = installed.rename(installed.with_suffix(".kept"))
        self.addCleanup(kept.rename, installed)
        self.assertIn("nor in the program's run path", self.check(folder / "build" / "my_program"))

    # --- what is said when something is missing -------------------------------------------------------

    def test_a_wrong_libtorch_is_named(self):
        folder = self.project("project", "without_torch")
        shutil.copy(HERE / "subproject" / "my_program.cpp", folder)
        code, text = self.configure(folder, f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DLOCKSTEP_TORCH=/nowhere")
        self.assertNotEqual(code, 0)
        self.assertIn("LOCKSTEP_TORCH=/nowhere is no libtorch: lib/libtorch_cpu.so is missing", flat(text))
        other = self.work / "other_torch"
        (other / "lib").mkdir(parents=True)
        (other / "lib" / "libtorch_cpu.so").touch()
        (other / "include/torch/headeronly").mkdir(parents=True)
        (other / "include/torch/headeronly/version.h").write_text(
            "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 5\n#define TORCH_VERSION_PATCH 1\n")
        code, text = self.configure(folder, f"-DLOCKSTEP_TORCH={other}")
        self.assertNotEqual(code, 0)
        self.assertIn("is libtorch 2.5.1; lockstep needs 2.11.0", flat(text))
        # Found by itself, it is passed over, and the right one is taken; with none left the sentence helps.
        code, text = self.configure(folder, f"-DCMAKE_PREFIX_PATH={self.prefix};{other}", "-ULOCKSTEP_TORCH")
        self.assertEqual(code, 0, text)
        with self.no_recorded_torch():
            nothing = "-DPython3_EXECUTABLE=/bin/false"
            code, text = self.configure(folder, nothing)
            self.assertNotEqual(code, 0)
            self.assertIn("other_torch is 2.5.1; lockstep needs 2.11.0", flat(text))
            self.assertIn("pip install torch==2.11.0", flat(text))
            for prefix in (options.torch, options.torch / "share/cmake", options.torch.parent):
                code, text = self.configure(folder, nothing, f"-DCMAKE_PREFIX_PATH={self.prefix};{prefix}")
                self.assertEqual(code, 0, f"{prefix}\n{text}")
            code, text = self.configure(folder, "-UPython3_EXECUTABLE", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                                        env=clean_environment(PYTHONPATH=options.torch.parent))
            self.assertEqual(code, 0, f"python's torch\n{text}")

    def no_recorded_torch(self):
        """The package as it is on a machine that lacks the libtorch of the build."""
        config = self.prefix / "lib/cmake/lockstep/lockstepConfig.cmake"
        kept = config.read_text()

        class Without:
            def __enter__(self):
                config.write_text(kept.replace(str(options.torch), "/gone"))

            def __exit__(self, *_):
                config.write_text(kept)
        return Without()

    def test_a_copy_of_libtorch_beside_lockstep_comes_first(self):
        folder = self.project("project", "bundled")
        shutil.copy(HERE / "subproject" / "my_program.cpp", folder)
        bundled = self.prefix / BUNDLED
        bundled.parent.mkdir(parents=True)
        bundled.symlink_to(options.torch)  # the component copies 500 MB; what matters here is that it is used
        self.addCleanup(shutil.rmtree, bundled.parent)
        code, text = self.configure(folder, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.assertEqual(code, 0, text)
        linked = re.search(r"\S+/libtorch_cpu.so", (folder / "build/build.ninja").read_text()).group(0)
        self.assertEqual(linked, str(bundled / "lib/libtorch_cpu.so"))
        text = self.check("ldd", self.prefix / "bin" / "lockstep-torch")
        self.assertIn(str(self.prefix), re.search(r"libtorch_cpu.so => (\S+)", text).group(1))

    # --- the tree itself ------------------------------------------------------------------------------

    def test_only_what_is_public_is_installed(self):
        def headers(folder):
            return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        self.assertEqual(headers(self.prefix / "include"), headers(ROOT / "include"))
        self.assertEqual(sorted(p.name for p in (self.prefix / "bin").iterdir()),
                         ["lockstep", "lockstep-bench", "lockstep-explain", "lockstep-torch"])
        archives = {p.name for p in (self.prefix / "lib").glob("*.a")}
        self.assertIn("liblockstep_train.a", archives)
        self.assertFalse(archives & {"liblockstep_launch.a", "liblockstep_explain.a", "liblockstep_test_support.a"})
        for name in ("share/lockstep/recipes/cats.toml", "share/doc/lockstep/README.md", "share/doc/lockstep/LICENSE",
                     "share/doc/lockstep/docs/tour.md", "share/doc/lockstep/examples/06_trainer.cpp"):
            self.assertTrue((self.prefix / name).is_file(), name)

    def test_nothing_refers_to_the_tree_that_it_was_built_in(self):
        # But for libtorch, which is used where it is; by default that is .deps of the sources.
        texts = [*self.prefix.rglob("*.cmake"), *self.prefix.rglob("*.pc")]
        self.assertGreaterEqual(len(texts), 6)
        for path in texts:
            text = path.read_text().replace(str(options.torch), "")
            for place in (options.build.resolve(), options.build, ROOT, self.work / "stage", "/opt/first"):
                self.assertNotIn(str(place), text, path)
        self.assertEqual(self.run_path("lockstep"), "")
        for program in ("lockstep-bench", "lockstep-explain", "lockstep-torch"):
            self.assertEqual(self.run_path(program), f"$ORIGIN/../{BUNDLED}/lib:{options.torch}/lib:$ORIGIN/../lib/lockstep")

    def run_path(self, program):
        text = self.check("readelf", "-d", self.prefix / "bin" / program)
        found = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text)
        return found.group(1) if found else ""

    def test_the_installed_programs_train(self):
        text = self.check(self.lockstep, "run", "--nproc-per-node", 2, "--", self.lockstep, "train",
                          self.prefix / "share/lockstep/recipes/cats.toml", "--set", "train.epochs=1", cwd=self.work)
        self.assertIn("all 2 ranks hold the same bits", text)

    def test_the_documents_show_these_projects(self):
        pages = [(ROOT / page).read_text() for page in ("README.md", "docs/package.md", "docs/package.ko.md")]
        for kind in ("project", "subproject"):
            lines = (HERE / kind / "CMakeLists.txt").read_text().split("\n\n", 1)[1]
            for page in pages:
                self.assertIn(lines, page)


def version():
    return re.search(r'kVersion = "(.*)"', (ROOT / "include/lockstep/base/version.h").read_text()).group(1)


def flat(text):
    """CMake breaks the lines of its messages."""
    return " ".join(text.split())


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=Path, required=True, help="a configured and built tree")
    parser.add_argument("--torch", type=Path, required=True, help="the libtorch that it was built with")
    parser.add_argument("--compiler", default="c++")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
