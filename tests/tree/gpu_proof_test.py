"""tools/gpu_proof.sh on a made-up pack, whose programs are scripts."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "gpu_proof.sh"
# A test program: writes the report that it is told to and what it is told to print.
PROGRAM = """#!/bin/sh
for argument in "$@"; do
  case $argument in --gtest_output=xml:*) report=${argument#--gtest_output=xml:} ;; esac
done
"""
CASE = "<testcase name='%s' classname='Gpu' status='run' result='%s'>%s</testcase>"


def reports(*cases):
    return f"""cat >"$report" <<'END'\n<testsuites><testsuite>{"".join(cases)}</testsuite></testsuites>\nEND\n"""


PASSED = CASE % ("Adds", "completed", "")
FAILED = CASE % ("Sums", "completed", "<failure message='cuda_test.cpp:7&#x0A;expected 3, found 4'/>")
SKIPPED = CASE % ("Pins", "skipped", "<skipped message='cuda_test.cpp:9&#x0A;no NVIDIA driver'/>")
PARITY = {"model": "mlp", "ranks": 2, "max_loss_difference_to_one_rank": 1e-7, "max_loss_difference_to_cpu": 1e-6,
          "same_bits_across_ranks": True, "shards_same_bits": True, "loss_drop": 0.02}


class GpuProof(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.pack = Path(folder.name) / "a pack"
        (self.pack / "bin").mkdir(parents=True)
        self.out = Path(folder.name) / "out"
        self.tests = []
        self.program("lockstep", "true")

    def program(self, name, text, folder="bin"):
        path = self.pack / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(PROGRAM + text)
        path.chmod(0o755)

    def add_test(self, name, text, timeout_s=60.0):
        self.program(name, text)
        self.tests.append({"name": name, "program": name, "arguments": [], "environment": ["WORD=good"],
                           "timeout_s": timeout_s})

    def prove(self, *arguments, code):
        about = {"commit": "abc", "modified": False, "tests": self.tests}
        (self.pack / "pack.json").write_text(json.dumps(about))
        env = {**os.environ, "LOCKSTEP_TORCH": "/torch", "PATH": f"{self.pack}/tools:{os.environ['PATH']}"}
        done = subprocess.run([TOOL, self.pack, self.out, *arguments], capture_output=True, text=True, env=env,
                              check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code == 2:
            return done.stderr
        summary = json.loads((self.out / "summary.json").read_text())
        self.assertEqual(summary["ok"], code == 0)
        return {x["name"]: x for x in summary["programs"]}

    def test_counts_what_passed_failed_and_was_skipped(self):
        self.add_test("a_cuda_test", reports(PASSED, FAILED, SKIPPED) + "exit 1")
        found = self.prove("--only", "tests", code=1)["a_cuda_test"]
        self.assertEqual((found["passed"], found["failed"], found["skipped"]), (1, 1, 1))
        self.assertEqual(found["failures"][0]["name"], "Gpu.Sums")
        self.assertIn("expected 3, found 4", found["failures"][0]["message"])
        self.assertEqual(found["skips"], [{"name": "Gpu.Pins", "message": "no NVIDIA driver"}])

    def test_is_content_only_if_nothing_failed_and_nothing_was_skipped(self):
        self.add_test("a_cuda_test", reports(PASSED))
        self.prove("--only", "tests", code=0)
        self.add_test("b_cuda_test", reports(PASSED, SKIPPED))
        self.prove("--only", "tests", code=1)

    def test_a_case_that_needs_two_gpus_may_be_skipped(self):
        self.add_test("a_cuda_test", reports(PASSED, SKIPPED.replace("no NVIDIA driver", "needs two GPUs; and more")))
        found = self.prove("--only", "tests", code=0)["a_cuda_test"]
        self.assertEqual((found["passed"], found["skipped"]), (1, 1))
        self.assertIn("needs two GPUs", (self.out / "summary.json").read_text())
        self.add_test("b_cuda_test", reports(PASSED, SKIPPED))
        self.prove("--only", "tests", code=1)

    def test_finds_libraries_of_the_pack_and_of_torch(self):
        self.add_test("a_cuda_test", reports(PASSED) + 'echo "with $LD_LIBRARY_PATH and $WORD"')
        self.prove("--only", "tests", code=0)
        self.assertIn(f"with /torch/lib:{self.pack}/lib", (self.out / "log.txt").read_text())
        self.assertIn("and good", (self.out / "log.txt").read_text())

    def test_names_the_case_in_which_a_program_crashed(self):
        self.add_test("a_cuda_test", "echo '[ RUN      ] Gpu.Adds'; echo '[       OK ] Gpu.Adds (3 ms)'\n"
                                         "echo '[ RUN      ] Gpu.Sums'; echo oh; kill -SEGV $$")
        found = self.prove("--only", "tests", code=1)["a_cuda_test"]
        self.assertEqual((found["passed"], found["failed"]), (1, 1))
        self.assertEqual(found["failures"][0]["name"], "Gpu.Sums")
        self.assertIn("exit code -11", found["failures"][0]["message"])
        self.assertIn("oh", found["failures"][0]["message"])

    def test_stops_a_program_and_what_it_started_at_its_limit(self):
        self.add_test("a_cuda_test", "echo '[ RUN      ] Gpu.Hangs'; sleep 600 & echo $! >&2; wait", timeout_s=1.0)
        found = self.prove("--only", "tests", code=1)["a_cuda_test"]
        self.assertTrue(found["timed_out"])
        self.assertEqual(found["failures"][0]["name"], "Gpu.Hangs")
        started = [x for x in (self.out / "log.txt").read_text().splitlines() if x.isdigit()][0]
        stat = Path(f"/proc/{started}/stat")
        self.assertTrue(not stat.exists() or stat.read_text().split(") ")[1][0] == "Z")

    def test_what_no_time_is_left_for_has_failed(self):
        self.add_test("a_cuda_test", reports(PASSED))
        found = self.prove("--only", "tests", "--seconds", "1", code=1)["a_cuda_test"]
        self.assertIn("not run: the 1 s for everything were spent", found["failures"][0]["message"])

    def test_a_program_without_cases_has_failed(self):
        self.add_test("a_cuda_test", reports())
        found = self.prove("--only", "tests", code=1)["a_cuda_test"]
        self.assertEqual(found["failures"][0]["message"], "no case was run")

    def test_an_exit_code_without_a_failed_case_is_a_failure(self):
        self.add_test("a_cuda_test", reports(PASSED) + "exit 3")
        self.prove("--only", "tests", code=1)

    def test_the_filter_chooses_programs(self):
        self.add_test("a_cuda_test", reports(PASSED))
        self.add_test("b_cuda_test", "exit 1")
        self.assertEqual(list(self.prove("--only", "tests", "--filter", "a_*", code=0)), ["a_cuda_test"])

    def test_a_report_of_the_sanitizer_is_a_failure(self):
        self.program("device_cuda_test", reports(PASSED))
        found = self.prove("--only", "sanitizer", code=1)  # where there is none
        self.assertEqual(list(found), ["memcheck", "racecheck"])
        self.program("compute-sanitizer", 'while [ "${1#/}" = "$1" ]; do shift; done; "$@"\n'
                     'echo "========= ERROR SUMMARY: 0 errors"\n', "tools")
        self.assertEqual(self.prove("--only", "sanitizer", code=0)["memcheck"]["passed"], 1)
        self.program("compute-sanitizer", 'while [ "${1#/}" = "$1" ]; do shift; done; "$@"\n'
                     'echo "========= Invalid __global__ write"; echo "========= ERROR SUMMARY: 1 error"; exit 99\n',
                     "tools")
        found = self.prove("--only", "sanitizer", code=1)["racecheck"]
        self.assertIn("Invalid __global__ write", found["failures"][0]["message"])

    def test_a_missed_goal_of_a_bench_is_a_failure(self):
        self.program("lockstep", f"echo '{json.dumps({'cases': [PARITY]})}'")
        self.assertEqual(self.prove("--only", "bench", code=0)["gpu-parity"]["result"], {"cases": [PARITY]})
        for key, value in (("max_loss_difference_to_cpu", 2e-4), ("max_loss_difference_to_one_rank", None),
                           ("shards_same_bits", False), ("loss_drop", 5e-4)):
            wrong = {**PARITY, key: value}
            self.program("lockstep", f"echo '{json.dumps({'cases': [PARITY, wrong]})}'")
            found = self.prove("--only", "bench", code=1)["gpu-parity"]
            self.assertEqual((found["passed"], found["failed"]), (1, 1), key)
            self.assertIn(key, found["failures"][0]["message"])

    def test_a_bench_that_prints_no_json_has_failed(self):
        self.program("lockstep", "echo 'UsageError: no GPU' >&2; exit 2")
        found = self.prove("--only", "bench", code=1)["gpu-parity"]
        self.assertIn("UsageError: no GPU", found["failures"][0]["message"])

    def test_scripts_are_told_how_to_start_a_program(self):
        self.program("lockstep", f"echo '{json.dumps({'cases': [PARITY]})}'")
        script = self.pack / "bench" / "gpu_start.py"
        script.parent.mkdir()
        script.write_text("import json, os, shlex, sys\n"
                          "program, name = shlex.split(sys.argv[2])\n"
                          "later = 7 if sys.argv[1] == '--lockstep' and os.path.dirname(program) else 99\n"
                          "print(json.dumps({'cases': [{'program': os.path.basename(program) + ' ' + name,"
                          " 'later_ms': later}]}))\n")
        found = self.prove("--only", "bench", code=0)["gpu_start"]
        self.assertEqual(found["result"]["cases"], [{"program": "run lockstep", "later_ms": 7}])
        script.write_text(script.read_text().replace("7", "21"))
        found = self.prove("--only", "bench", code=1)["gpu_start"]
        self.assertIn("later_ms is 21, at most 20 is right", found["failures"][0]["message"])

    def test_mistakes_on_the_line_are_named(self):
        self.add_test("a_cuda_test", reports(PASSED))
        self.assertIn("--only everything: the parts are tests, sanitizer, bench",
                      self.prove("--only", "everything", code=2))
        done = subprocess.run([TOOL, "/", self.out], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/ is no folder made by tools/gpu_pack.sh", done.stderr)


if __name__ == "__main__":
    unittest.main()
