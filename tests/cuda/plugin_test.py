"""The CUDA plug-in as a file: what it exports and needs, and what its compiler refuses. No GPU is needed.

    tests/cuda/plugin_test.py --plugin FILE --nvcc PROGRAM --flags FILE --symbols HEADER --libtorch FOLDER
                              [unittest's arguments]

--nvcc=  (empty): the plug-in is not built, for want of a compiler; --flags: what it is compiled with, one per line;
--symbols: the list of what it takes of libtorch.
"""
import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

# libtorch brings the CUDA runtime, every machine with g++'s programs the rest.
LIBRARIES = re.compile(r"libcudart\.so\.13|libstdc\+\+\.so\.6|libgcc_s\.so\.1|lib[cm]\.so\.6|ld-linux-x86-64\.so\.2")
VERSIONS = re.compile(r"@(libcudart\.so\.13|GLIBC_[\d.]+|GLIBCXX_[\d.]+|CXXABI_[\d.]+|GCC_[\d.]+)$")
# Hooks of the C runtime, which nobody need define.
OPTIONAL = {"__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}

# Each thread keeps an array, of which it must not lose a value before the end.
KERNEL = """
extern "C" __global__ void __launch_bounds__(1024) keep(float* data, int steps) {
  float kept[COUNT];
  for (int i = 0; i < COUNT; ++i) kept[i] = data[i * 1024 + threadIdx.x];
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) kept[i] = kept[i] * kept[(i + 7) % COUNT] + 1.0f;
  }
  for (int i = 0; i < COUNT; ++i) data[i * 1024 + threadIdx.x] = kept[i];
}
"""

options = argparse.Namespace()


def find_cudart(libtorch):
    """libtorch's CUDA runtime; else the machine's."""
    found = sorted(Path(libtorch).parent.rglob("libcudart.so.13"))
    return str(found[0]) if found else "libcudart.so.13"


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Plugin(unittest.TestCase):
    def setUp(self):
        if not options.nvcc:
            reason = "the plug-in was not built: no nvcc of CUDA 13; `make setup` fetches one"
            if "nvcc" in os.environ.get("LOCKSTEP_REQUIRE", "").split(","):
                self.fail(reason)
            self.skipTest(reason)

    def test_exports_its_entry_alone(self):
        symbols = [x.split()[-1] for x in output_of("nm", "-D", "--defined-only", options.plugin).splitlines()]
        self.assertEqual(symbols, ["lockstep_cuda_plugin"])

    def test_needs_the_cuda_runtime_and_no_more_than_every_machine_has(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "--wide", "-d", options.plugin))
        self.assertIn("libcudart.so.13", needed)
        self.assertEqual([x for x in needed if not LIBRARIES.fullmatch(x)], [])
        listed = set(re.findall(r'asm\("\.weak (\w+)"\)', Path(options.symbols).read_text()))
        foreign, of_libtorch = [], set()
        for line in output_of("nm", "-D", "--undefined-only", options.plugin).splitlines():
            kind, symbol = line.split()
            if kind == "w" and symbol in listed:
                of_libtorch.add(symbol)
            elif not VERSIONS.search(symbol) and not (kind == "w" and symbol in OPTIONAL):
                foreign.append(symbol)
        self.assertEqual(foreign, [])
        self.assertEqual(of_libtorch, listed)

    def test_is_loaded_without_libtorch(self):
        ctypes.CDLL(find_cudart(options.libtorch), mode=ctypes.RTLD_GLOBAL)
        self.assertTrue(ctypes.CDLL(options.plugin, mode=os.RTLD_NOW).lockstep_cuda_plugin)

    def test_what_it_takes_of_libtorch_is_there(self):
        listed = set(re.findall(r'asm\("\.weak (\w+)"\)', Path(options.symbols).read_text()))
        there, missing = set(), []
        for name in ("c10", "torch_cpu", "c10_cuda", "torch_cuda"):
            file = Path(options.libtorch) / "lib" / f"lib{name}.so"
            if file.exists():
                there |= {x.split()[-1] for x in output_of("nm", "-D", "--defined-only", file).splitlines()}
            else:
                missing.append(name)
        # A libtorch without its CUDA part has what its two other libraries have.
        self.assertEqual({x for x in listed - there if not missing or "cuda" not in x}, set())

    def test_has_no_run_path(self):
        self.assertNotRegex(output_of("readelf", "--wide", "-d", options.plugin), r"\((RPATH|RUNPATH)\)")

    def compile(self, count):
        flags = Path(options.flags).read_text().splitlines()
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernel.cu"
            source.write_text(KERNEL)
            return subprocess.run([options.nvcc, *flags, f"-DCOUNT={count}", "-c", source, "-o", f"{folder}/kernel.o"],
                                  capture_output=True, text=True, check=False)

    def test_a_kernel_that_spills_registers_is_refused(self):
        small = self.compile(8)
        self.assertEqual(small.returncode, 0, small.stderr)
        large = self.compile(96)  # 64 registers are what 1024 threads leave for each
        self.assertNotEqual(large.returncode, 0, large.stderr)
        self.assertRegex(large.stderr, r"[Ss]pill")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--flags", required=True)
    parser.add_argument("--symbols", required=True)
    parser.add_argument("--libtorch", required=True)
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
