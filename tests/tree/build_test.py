"""tools/build.py: what it says while it builds, and that it ends as ninja does."""
import io
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import build  # noqa: E402

PLAIN = "Building CXX object src/base/CMakeFiles/lockstep_base.dir/a.cpp.o"
TORCH = "Building CXX object src/comm/CMakeFiles/lockstep_comm.dir/a.cpp.o"
PCH = "Building CXX object CMakeFiles/lockstep_pch.dir/cmake_pch.hxx.gch"


class Estimates(unittest.TestCase):
    def test_steps_cost_what_they_cost_the_last_time_or_what_such_steps_cost(self):
        self.assertEqual(build.weight(PLAIN, {}), build.PLAIN_S)
        self.assertEqual(build.weight(TORCH, {}), build.TORCH_S)
        self.assertEqual(build.weight(PCH, {}), build.PCH_S)
        self.assertEqual(build.weight("Linking CXX executable bin/base_test", {}), build.LINK_S)
        self.assertEqual(build.weight("Building CXX object apps/lockstep/CMakeFiles/x.dir/a.cpp.o", {}), build.PLAIN_S)
        self.assertEqual(build.weight("Re-checking something", {}), build.OTHER_S)
        self.assertEqual(build.weight(TORCH, {"src/comm/CMakeFiles/lockstep_comm.dir/a.cpp.o": 2.5}), 2.5)

    def test_the_log_of_ninja(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ".ninja_log"
            self.assertEqual(build.read_log(path), {})
            path.write_text("# ninja log v5\n0\t1500\t7\ta.o\tabc\n10\t20\t7\tb.o\tabc\n100\t400\t9\ta.o\tdef\n")
            self.assertEqual(build.read_log(path), {"a.o": 0.3, "b.o": 0.01})

    def test_the_speed_of_this_build_counts(self):
        steps = [TORCH] * 100
        estimate = build.Estimate(steps, {}, 2)
        self.assertAlmostEqual(estimate.seconds_left(), 450)
        for number in range(50):  # a step each second, not every 4.5
            estimate.done(TORCH, 1000 + number)
        self.assertAlmostEqual(estimate.seconds_left(), 50, delta=1)
        for number in range(10):  # and then one every ten
            estimate.done(TORCH, 1050 + 10 * number)
        self.assertAlmostEqual(estimate.seconds_left(), 400, delta=20)
        for _ in range(100):  # more than were planned
            estimate.done(TORCH, 1200)
        self.assertEqual(estimate.seconds_left(), 0)

    def test_durations(self):
        self.assertEqual([build.duration(x) for x in (0.4, 59, 60, 99, 600, 3599, 3600, 5000)],
                         ["0 s", "59 s", "1 min", "1 min 39 s", "10 min", "1 h 0 min", "1 h 0 min", "1 h 23 min"])
        self.assertEqual([build.roughly(x) for x in (3, 12, 58, 97, 290, 400)],
                         ["a few seconds", "10 s", "1 min", "1 min 30 s", "5 min", "7 min"])


class Lines(unittest.TestCase):
    def follow(self, text, is_terminal, seconds_a_line=4):
        out, now = io.StringIO(), iter(range(0, 10000, seconds_a_line))
        estimate = build.Estimate([PLAIN] * 10, {}, 2)
        finished = build.follow(text, estimate, build.Line(out, is_terminal, 60), clock=lambda: next(now))
        return finished, out.getvalue()

    STEPS = [f"@step {number} 10@ {PLAIN}\n" for number in range(1, 11)]

    def test_plain_lines_every_ten_seconds(self):
        finished, text = self.follow(self.STEPS, is_terminal=False)
        self.assertEqual(finished, 10)
        self.assertEqual(text.splitlines(), ["build: 1 of 10, 10 %, 5 s left", "build: 4 of 10, 40 %, 25 s left",
                                             "build: 7 of 10, 70 %, 10 s left"])

    def test_one_line_on_a_terminal(self):
        _, text = self.follow(self.STEPS, is_terminal=True)
        self.assertEqual(text.count("\n"), 0)
        self.assertIn("\r\x1b[Kbuild: 9 of 10, 90 %, a few seconds left  a.cpp.o", text)
        self.assertTrue(all(len(x) < 70 for x in text.split("\r")))

    def test_what_compilers_say_comes_through(self):
        said = ["FAILED: a.o\n", "c++ -c a.cpp\n", "a.cpp:1: error: no [1/2]\n", "ninja: build stopped: failed.\n"]
        _, text = self.follow([self.STEPS[0], *said], is_terminal=False)
        self.assertTrue(text.endswith("".join(said)), text)
        _, text = self.follow([self.STEPS[0], *said], is_terminal=True)
        self.assertTrue(text.endswith("\r\x1b[K" + "".join(said)), text)


@unittest.skipUnless(shutil.which("ninja"), "no ninja here")
class WithNinja(unittest.TestCase):
    RULES = "rule do\n  command = $do\n  description = Building CXX object src/base/$out\nbuild build.ninja: phony\n"

    def run_build(self, steps, *more, again=False):
        """(exit code, lines) of a build of {output: command}; again: the second one."""
        with tempfile.TemporaryDirectory() as folder:
            text = "".join(f"build {out}: do\n  do = {do}\n" for out, do in steps.items())
            (Path(folder) / "build.ninja").write_text(self.RULES + text)
            for _ in range(2 if again else 1):
                done = subprocess.run([sys.executable, "-B", TOOLS / "build.py", folder, "-j", "1", *more], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
            return done.returncode, done.stdout.splitlines()

    def test_a_build(self):
        code, lines = self.run_build({"a.o": "touch a.o", "b.o": "echo a warning; touch b.o"})
        self.assertEqual(code, 0, lines)
        self.assertEqual(lines[0], "build: 2 steps, a few seconds")
        self.assertIn("a warning", lines)
        self.assertRegex(lines[-1], r"^build: 2 steps in \d+ s$")

    def test_some_targets(self):
        _, lines = self.run_build({"a.o": "touch a.o", "b.o": "touch b.o"}, "b.o")
        self.assertEqual(lines[0], "build: 1 step, a few seconds")

    def test_nothing_to_do_is_silent(self):
        self.assertEqual(self.run_build({"a.o": "touch a.o"}, again=True), (0, []))

    def test_a_failure_has_ninjas_exit_code_and_the_compilers_words(self):
        code, lines = self.run_build({"a.o": "echo a.cpp:1: wrong; false"})
        self.assertEqual(code, 1)
        self.assertIn("a.cpp:1: wrong", lines)
        self.assertIn("FAILED: a.o ", lines)
        self.assertRegex(lines[-1], r"^build: failed after \d+ s$")

    def test_a_folder_that_is_not_configured(self):
        done = subprocess.run([sys.executable, "-B", TOOLS / "build.py", "/nowhere"], capture_output=True, text=True,
                              check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere", done.stdout)


if __name__ == "__main__":
    unittest.main()
