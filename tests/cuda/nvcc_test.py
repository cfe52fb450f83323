"""Which nvcc the build takes, and which compiler that nvcc calls, in a made-up tree. Nothing is compiled.

    tests/cuda/nvcc_test.py --cmake PROGRAM --source FOLDER [unittest's arguments]
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

# What src/cuda/CMakeLists.txt needs of the rest of the build.
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(made_up NONE)
function(lockstep_record)
endfunction()
set(LOCKSTEP_WITH_TORCH ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
add_subdirectory(src/cuda)
"""

options = argparse.Namespace()


def nvcc_of(release, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n")
    path.chmod(0o755)
    return path


class Nvcc(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name)
        (self.tree / "src/cuda").mkdir(parents=True)
        (self.tree / "CMakeLists.txt").write_text(PROJECT)
        shutil.copy(options.source / "src/cuda/CMakeLists.txt", self.tree / "src/cuda")
        for source in ("plugin.cu", "sum_of_squares.cu"):
            (self.tree / "src/cuda" / source).touch()
        self.own = nvcc_of("13.0", self.tree / ".deps/nvcc/bin/nvcc")
        self.path = "/usr/bin:/bin"

    def configure(self, *settings, compiler="/opt/g++-12", kind="GNU"):
        """Returns what CMake says; self.chosen is the nvcc that it takes, self.rules the build's commands."""
        run = subprocess.run(
            [options.cmake, "-G", "Ninja", "-S", self.tree, "-B", self.tree / "build", *settings,
             f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_COMPILER_ID={kind}"],
            capture_output=True, text=True, env={**os.environ, "PATH": self.path, "CUDA_HOME": str(self.tree / "toolkit")})
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        cache = (self.tree / "build/CMakeCache.txt").read_text()
        self.chosen = re.search("^LOCKSTEP_NVCC:FILEPATH=(.*)$", cache, re.MULTILINE).group(1)
        self.rules = (self.tree / "build/build.ninja").read_text()
        return " ".join(run.stderr.split())

    def test_one_in_the_cache_that_became_of_another_cuda_is_replaced(self):
        self.own.unlink()
        toolkit = nvcc_of("13.0", self.tree / "toolkit/bin/nvcc")
        self.assertEqual(self.configure(), "")
        self.assertEqual(self.chosen, str(toolkit))
        nvcc_of("12.9", toolkit)
        nvcc_of("13.0", self.own)
        self.assertRegex(self.configure(), "toolkit/bin/nvcc is not there, or not of CUDA 13")
        self.assertEqual(self.chosen, str(self.own))
        self.assertEqual(self.configure(), "")

    def test_one_that_is_named_must_be_of_the_right_cuda(self):
        named = nvcc_of("12.9", self.tree / "named/nvcc")
        self.configure(f"-DLOCKSTEP_NVCC:FILEPATH={named}")
        self.assertEqual(self.chosen, str(self.own))
        nvcc_of("13.1", named)
        self.assertEqual(self.configure(f"-DLOCKSTEP_NVCC:FILEPATH={named}"), "")
        self.assertEqual(self.chosen, str(named))

    def test_one_that_is_gone_is_replaced(self):
        toolkit = nvcc_of("13.0", self.tree / "named/nvcc")
        self.configure(f"-DLOCKSTEP_NVCC:FILEPATH={toolkit}")
        toolkit.unlink()
        self.configure()
        self.assertEqual(self.chosen, str(self.own))

    def calls(self, compiler):
        return len(re.findall(f"nvcc -ccbin {re.escape(compiler)} ", self.rules))

    def calls_all_by(self, compiler):
        """Each source, and the linking."""
        sources = sum(file.suffix in (".cu", ".cpp") for file in (options.source / "src/cuda").iterdir())
        self.assertGreater(sources, 1)
        self.assertEqual(self.calls(compiler), sources + 1)

    def test_it_calls_the_compiler_of_the_build(self):
        self.configure()
        self.calls_all_by("/opt/g++-12")

    def test_it_calls_clang_only_where_there_is_no_gxx(self):
        tools = self.tree / "tools"
        tools.mkdir()
        for tool in ("ninja", "sh"):
            (tools / tool).symlink_to(shutil.which(tool))
        self.path = str(tools)
        isolated = ("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",)  # no folders but those of PATH
        self.configure(*isolated, compiler="/opt/clang++", kind="Clang")
        self.calls_all_by("/opt/clang++")
        (tools / "g++").write_text("#!/bin/sh\n")
        (tools / "g++").chmod(0o755)
        self.configure(*isolated, compiler="/opt/clang++", kind="Clang")
        self.assertEqual(self.calls("/opt/clang++"), 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--source", required=True, type=Path)
    rest = parser.parse_known_args(namespace=options)[1]
    unittest.main(argv=sys.argv[:1] + rest)


if __name__ == "__main__":
    main()
