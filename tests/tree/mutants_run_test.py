"""The whole of tools/mutants.py on a small repository: a real compiler, and tests that are a script."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "mutants.py"
SOURCE = """#include <string>
namespace lockstep {
constexpr int kMost = 9;
int least(int x, int y = 4) {
  if (x < y && x != 3) {
    return x;
  }
  return y;
}
struct Counter {
  explicit Counter(int start) : count_{start} { step_ = 2; }
  int next() { return count_ += step_; }
  int count_ = 0;
  int step_ = 1;
};
int& shared() {
  static int value = kMost;
  return value;
}
}  // namespace lockstep
"""
MAIN = """#include "comm/least.cpp"
int main(int, char** argv) {
  const std::string what = argv[1];
  const bool is_right = what == "least" ? lockstep::least(2) == 2 && lockstep::least(9) == 4
                                        : lockstep::Counter(1).next() == 3 && lockstep::shared() == 9;
  return is_right ? 0 : 1;
}
"""
# Configures, or compiles in the tree that it is called in, and says what CMake's lists and compilers say.
CMAKE = """#!/bin/sh
echo "cmake $*" >>"$RECORD"
if [ "$1" = --preset ]; then
  mkdir -p "build/$2/bin"
  cd "build/$2"
  {
    echo 'area|comm||src/comm/least.cpp'
    echo 'test|comm_test|base|tests/comm/least_test.cpp,tests/comm/count_test.cpp'
    echo 'test|other_test|base|tests/shm/a_test.cpp,tests/comm/support.cpp'
    echo 'test|gone_test|base|tests/comm/b_test.cpp'
  } >targets.txt
  printf 'gtest|comm_test\\ngtest|other_test\\nabsent|gone_test|why\\n' >tests.txt
else
  c++ -std=c++20 -I src src/main.cpp -o "$2/bin/program" 2>&1
fi
"""
# It knows no command of what is not built.
CTEST = """#!/bin/sh
[ -f "$2/bin/program" ] || no=no_
cat <<END
{"tests": [
  {"name": "comm_test", "${no}command": ["$HOME/bin/comm_test", "--gtest_output=xml:$HOME/not_here.xml"],
   "properties": [{"name": "WORKING_DIRECTORY", "value": "$2/bin"}, {"name": "ENVIRONMENT", "value": ["A=1"]}]},
  {"name": "comm_test_on_slurm", "command": ["$HOME/bin/comm_test"],
   "properties": [{"name": "LABELS", "value": ["ranks", "slurm"]}]},
  {"name": "other_test", "command": ["$HOME/bin/other_test"]},
  {"name": "gone_test"}]}
END
"""
# As a GoogleTest binary is; a case fails if the program says so.
COMM_TEST = """#!/bin/sh
run=
for argument; do
  case "$argument" in
    --gtest_filter=-*) except=${argument#*=-} ;;
    --gtest_filter=*) only=${argument#*=} ;;
    --gtest_output=xml:*) output=${argument#*:} ;;
  esac
done
for test in Least.IsTheSmaller Count.Goes; do
  case ":${only:-$test}:" in *":$test:"*) ;; *) continue ;; esac
  case ":$except:" in *":$test:"*) continue ;; esac
  run="$run $test"
  echo "[ RUN      ] $test"
  case "$test" in Least.*) what=least ;; *) what=count ;; esac
  if ! ./program "$what"; then
    echo "[  FAILED  ] $test (0 ms)"
    echo "$LOCKSTEP_MUTANT$run" >>"$RECORD"
    exit 1
  fi
done
echo "$LOCKSTEP_MUTANT$run" >>"$RECORD"
[ -z "$output" ] || cat >"$output" <<END
<testsuites><testsuite name="Least">
<testcase name="IsTheSmaller" file="../tests/comm/least_test.cpp" status="run" result="completed" time="0.01"/>
<testcase name="IsSkipped" file="../tests/comm/least_test.cpp" status="run" result="skipped" time="0.01"/>
</testsuite><testsuite name="Count">
<testcase name="Goes" file="../tests/comm/count_test.cpp" status="run" result="completed" time="0.01"/>
</testsuite></testsuites>
END
"""


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.root, self.record = self.home / "tree", self.home / "record"
        (self.root / "src/comm").mkdir(parents=True)
        (self.root / "src/comm/least.cpp").write_text(SOURCE)
        (self.root / "src/main.cpp").write_text(MAIN)
        (self.root / ".gitignore").write_text("/build/\n/.setup/\n")
        (self.root / ".setup").mkdir()
        (self.root / ".setup/torch").write_text("/nowhere\n")
        (self.home / "bin").mkdir()
        # No namespace: a test needs none, and not every host gives one.
        for name, text in (("cmake", CMAKE), ("ctest", CTEST), ("comm_test", COMM_TEST),
                           ("unshare", "#!/bin/sh\nexit 1\n")):
            self.script(name, text)
        self.git("init -q")
        self.commit()
        # What is not committed is neither tried nor touched.
        (self.root / "src/comm/least.cpp").write_text("mine\n")

    def script(self, name, text):
        (self.home / "bin" / name).write_text(text)
        (self.home / "bin" / name).chmod(0o755)

    def git(self, command):
        return subprocess.run(["git", "-C", self.root, *command.split()], check=True, capture_output=True).stdout

    def commit(self):
        self.git("add -A")
        self.git("-c user.name=a -c user.email=a@b commit -q -m some")

    def run_tool(self, *more, keeps=False):
        self.record.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-B", TOOL, "--root", self.root, "--areas", "comm", *more],
            capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", "RECORD": str(self.record),
                 "HOME": str(self.home)})
        self.assertEqual((self.root / "src/comm/least.cpp").read_text(), "mine\n")
        self.assertEqual((self.root / "build/mutants/tree").exists(), keeps)
        self.assertEqual(self.git("worktree list").count(b"\n"), 1 + keeps)
        return done

    def results(self):
        return json.loads((self.root / "build/mutants/mutants.json").read_text())["mutants"]

    def runs(self):
        """The lines of the record that are tests': (number, cases)."""
        return [(int(x.split()[0]), x.split()[1:]) for x in self.record.read_text().splitlines()
                if not x.startswith("cmake")]

    def test_killed_survived_and_does_not_compile(self):
        done = self.run_tool("--count", "100", "--at-once", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {(x["line"], x["operator"], x["after"]): (x["result"], x["by"]) for x in self.results()}
        for mutant, wanted in {
                (5, "negated condition", "!(x < y && x != 3)"): ("killed", "comm_test: Least.IsTheSmaller"),
                (8, "return value", "{}"): ("killed", "comm_test: Least.IsTheSmaller"),
                (11, "constant", "3"): ("killed", "comm_test: Count.Goes"),
                (5, "comparison", "<="): ("survived", None),
                (5, "dropped operand", ""): ("survived", None),
                (18, "return value", "{}"): ("does not compile", None)}.items():
            # Each line has at most one of a kind.
            self.assertEqual(found.get(mutant, wanted), wanted, mutant)
        self.assertEqual({x[0] for x in found.values()}, set(("killed", "survived", "does not compile")))
        self.assertFalse([x for x in found if x[0] in (3, 4, 14)], "outside of functions, or constexpr")
        self.assertTrue([x for x in found if x[0] == 11])
        commands = [x for x in self.record.read_text().splitlines() if x.startswith("cmake")]
        self.assertEqual(len(commands), 3, commands)  # configured, built in vain, built
        self.assertRegex(commands[1], r"--build .* --target comm_test -- -k 0$")
        text = (self.root / "build/mutants/report.md").read_text()
        self.assertRegex(text, r"\| comm \| (\d+) \| \d+ \| \d+ \| \d+ \| \d+ % \|")
        self.assertRegex(text, r"\n- \d+\. `src/comm/least.cpp:5` comparison:\n  `<` became `<=`\n")
        self.assertFalse((self.home / "not_here.xml").exists())

    def test_the_cases_near_the_mistake_come_first(self):
        self.run_tool("--count", "12")
        survivor = next(x["number"] for x in self.results() if x["result"] == "survived")
        self.assertEqual([x[1] for x in self.runs() if x[0] == survivor], [["Least.IsTheSmaller"], ["Count.Goes"]])
        killed = next(x for x in self.results() if x["by"] == "comm_test: Least.IsTheSmaller")["number"]
        # Noticed; not without the mistake; again with it.
        self.assertEqual([x[1] for x in self.runs() if x[0] == killed], [["Least.IsTheSmaller"]] * 2)
        self.assertIn((0, ["Least.IsTheSmaller"]), self.runs())

    def test_tests_can_be_named(self):
        refused = self.run_tool("--count", "1", "--tests", "comm=other_test")
        self.assertIn("--tests comm=other_test: the area has no test other_test", refused.stderr)
        refused = self.run_tool("--count", "1", "--tests", "shm=other_test")
        self.assertIn("not AREA=TEST|TEST of one of comm", refused.stderr)
        refused = self.run_tool("--count", "1", "--without", "slurm,ssh", "--tests", "comm=comm_test_on_slurm")
        self.assertIn("the area has no test comm_test_on_slurm", refused.stderr)

    def test_an_area_of_two_folders(self):
        (self.root / "src/comm_files").mkdir()
        (self.root / "src/comm_files/b.cpp").write_text("int f() { return 1; }\n")
        (self.root / "src/comm/least.cpp").write_text(SOURCE)
        self.commit()
        (self.root / "src/comm/least.cpp").write_text("mine\n")
        done = self.run_tool("--areas", "comm+comm_files", "--count", "100", "--list")
        self.assertRegex(done.stdout, r"(?m)^\d+\. src/comm_files/b.cpp:1: constant: '1' -> '[02]'$")
        self.assertIn(". src/comm/least.cpp:", done.stdout)
        self.assertIn("there is no C++ in src/nowhere", self.run_tool("--areas", "nowhere").stderr)
        self.run_tool("--areas", "comm,comm_files", "--count", "4", "--only", "comm")
        self.assertEqual([(x["area"], bool(x["result"])) for x in self.results()],
                         [("comm", True), ("comm_files", False)] * 2)

    def test_a_list_tries_nothing(self):
        done = self.run_tool("--count", "3", "--list")
        self.assertEqual(done.stdout.count("src/comm/least.cpp:"), 3)
        self.assertFalse(self.record.exists())

    def test_it_goes_on_where_it_was_stopped(self):
        self.run_tool("--count", "8")
        whole = self.results()
        path = self.root / "build/mutants/mutants.json"
        record = json.loads(path.read_text())
        for mutant in record["mutants"]:
            if mutant["number"] in (2, 5, 8):
                mutant.update(result=None, by=None)
        path.write_text(json.dumps(record))
        self.run_tool("--count", "8", "--resume")
        self.assertEqual([x["result"] for x in self.results()], [x["result"] for x in whole])
        self.assertLessEqual({x[0] for x in self.runs()}, {0, 2, 5, 8})
        refused = self.run_tool("--count", "9", "--resume")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("is of another count", refused.stderr)

    def test_survivors_are_tried_again_on_new_tests(self):
        page = self.root / "build/mutants/report.md"
        self.run_tool("--count", "100", "--keep", keeps=True)
        survivors = [x["number"] for x in self.results() if x["result"] == "survived"]
        page.write_text(re.sub(r"(- \d+\. `src/comm/least.cpp:5` comparison:\n  `<` became `<=`\n)",
                               r"\1  The same: both are x.\n", page.read_text()))
        # "The tests" of the next commit: least(3) is asked for, too.
        self.git("checkout -q -- src")
        (self.root / "new_test").write_text("")
        self.commit()
        (self.root / "src/comm/least.cpp").write_text("mine\n")
        self.script("comm_test", COMM_TEST.replace("if ! ./program", "if [ $LOCKSTEP_MUTANT = %d ] || ! ./program" %
                                                   survivors[-1]))
        self.assertIn("is of another commit", self.run_tool("--count", "100", "--resume", "--keep", keeps=True).stderr)
        done = self.run_tool("--count", "100", "--again")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({x[0] for x in self.runs()}, {0, *survivors})
        killed = next(x for x in self.results() if x["number"] == survivors[-1])
        self.assertEqual((killed["result"], len(killed["survived"])), ("killed", 40))
        still, given = page.read_text().split("## Survivors that were given a test")
        self.assertIn(f"\n- {killed['number']}. `src/comm/least.cpp:", given)
        self.assertNotIn(f"\n- {killed['number']}. `src/comm/least.cpp:", still)
        self.assertIn("`<` became `<=`\n  The same: both are x.\n", still)

    def test_what_cannot_be_tried_is_said_and_leaves_nothing(self):
        self.script("comm_test", "#!/bin/sh\necho it is so; exit 1\n")
        self.assertIn("comm_test fails without a mistake:\nit is so", self.run_tool().stderr)
        self.script("comm_test", COMM_TEST.replace("<testcase", "<skipped").replace("exit 1", ""))
        self.assertIn("no case of comm's tests passes without a mistake", self.run_tool().stderr)
        self.script("cmake", CMAKE.replace("c++ -std", "echo /usr/x.h:3:1: error: no; exit 1; c++"))
        self.assertIn("HEAD does not compile, whatever mistakes it has:\n/usr/x.h:3:1: error: no",
                      self.run_tool().stderr)
        self.script("cmake", "#!/bin/sh\necho no such preset; exit 1\n")
        self.assertIn("no such preset", self.run_tool().stderr)
        (self.root / ".setup/torch").unlink()
        self.assertIn("call make setup first", self.run_tool().stderr)

    def test_a_signal_leaves_nothing(self):
        self.script("comm_test", "#!/bin/sh\nkill -TERM $(ps -o ppid= $PPID)\nexec sleep 60\n")
        self.assertEqual(self.run_tool().returncode, 143)


if __name__ == "__main__":
    unittest.main()
