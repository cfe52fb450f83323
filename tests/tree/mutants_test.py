"""tools/mutants.py: which mistakes it draws, and the whole of it on a small repository whose compiler and tests are
scripts."""
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
from tree import mutations  # noqa: E402

SAMPLE = """// if (a < b) return 1;
#include <algorithm>  // 3
namespace lockstep {
int clamp(int x, int least) {
  const char* text = "a + 1 == b";
  if (x < least && least != 0) {
    log::info("small", "{} below {}", x, 7);
    report(x, 2);
    total_ += x;
    return least;
  }
  ::kill(pid, 9);
  return std::max(x - 1, 0x10);
}
bool is_small(std::vector<int>&& x) { return x.size() <= 3 || x.empty(); }
Sampler& self() { return *this; }
const int* none() { return nullptr; }
}  // namespace lockstep
"""


def edits(text, operator=None):
    """{(line, operator, the line as it becomes)}."""
    found = set()
    for mutant in mutations.mutants_in("a.cpp", text):
        if operator in (None, mutant.operator):
            found.add((mutant.line, mutant.apply(text).split("\n")[mutant.line - 1].strip()))
    return found


class Mistakes(unittest.TestCase):
    def test_comparisons(self):
        self.assertEqual(edits(SAMPLE, "comparison"), {
            (6, "if (x <= least && least != 0) {"), (6, "if (x < least && least == 0) {"),
            (15, "bool is_small(std::vector<int>&& x) { return x.size() < 3 || x.empty(); }")})

    def test_constants(self):
        self.assertEqual(edits(SAMPLE, "constant"), {
            (6, "if (x < least && least != 1) {"), (8, "report(x, 3);"), (8, "report(x, 1);"),
            (13, "return std::max(x - 2, 0x10);"), (13, "return std::max(x - 0, 0x10);"),
            (15, "bool is_small(std::vector<int>&& x) { return x.size() <= 4 || x.empty(); }"),
            (15, "bool is_small(std::vector<int>&& x) { return x.size() <= 2 || x.empty(); }")})

    def test_statements(self):
        self.assertEqual(edits(SAMPLE, "dropped statement"), {(8, ";"), (9, ";")})
        for text in ("  const int x = f(1);", "  auto x = f(1);", "  int x = 3;", "  return f(1);", "  throw f(1);",
                     "  f(a,", "  using std::swap;", "  std::vector<int> x(3);"):
            self.assertEqual(edits("{\n" + text + "\n", "dropped statement"), set(), text)
        for text in ("  x = 3;", "  x.y->z[1] += 3;", "  ++x;", "  x.run(f(1), {2});", "  ns::run(1);"):
            self.assertEqual(edits("{\n" + text + "\n", "dropped statement"), {(2, ";")}, text)

    def test_conditions(self):
        self.assertEqual(edits(SAMPLE, "negated condition"), {(6, "if (!(x < least && least != 0)) {")})
        self.assertEqual(edits("if (const auto x = f()) {\nif (int n = 1; n) {\nif constexpr (k) {\n",
                               "negated condition"), set())
        self.assertEqual(edits('if (x == ")(") {', "negated condition"), {(1, 'if (!(x == ")(")) {')})

    def test_signs(self):
        self.assertEqual(edits(SAMPLE, "sign"), {(13, "return std::max(x + 1, 0x10);")})
        self.assertEqual(edits('x = name + "a";', "sign"), set())

    def test_return_values(self):
        self.assertEqual(edits(SAMPLE, "return value"), {
            (10, "return {};"), (13, "return {};"), (15, "bool is_small(std::vector<int>&& x) { return {}; }")})
        self.assertEqual(edits("return true;\nreturn false;\nreturn 3;\nreturn;\nreturn {};\n", "return value"),
                         {(1, "return false;"), (2, "return true;"), (3, "return 4;")})

    def test_operands(self):
        self.assertEqual(edits(SAMPLE, "dropped operand"), {
            (6, "if (x < least) {"), (15, "bool is_small(std::vector<int>&& x) { return x.size() <= 3; }")})
        self.assertEqual(edits("x = a && f(b || c, d) ? 1 : 2;", "dropped operand"),
                         {(1, "x = a ? 1 : 2;"), (1, "x = a && f(b, d) ? 1 : 2;")})

    def test_extremes(self):
        self.assertEqual(edits(SAMPLE, "min for max"), {(13, "return std::min(x - 1, 0x10);")})
        self.assertEqual(edits("std::numeric_limits<int>::max()", "min for max"), set())

    def test_comments_texts_and_dangerous_calls_stay(self):
        self.assertEqual({line for line, _ in edits(SAMPLE)} & {1, 2, 5, 7, 12, 16, 17}, set())

    def test_a_mutant_of_another_text_is_refused(self):
        mutant = mutations.mutants_in("a.cpp", SAMPLE)[0]
        with self.assertRaisesRegex(ValueError, "a.cpp:6 is not what it was"):
            mutant.apply("x" * 1000)


class Draw(unittest.TestCase):
    TEXTS = {"comm": {"src/comm/a.cpp": SAMPLE, "src/comm/b.cpp": SAMPLE}, "shm": {"src/shm/a.cpp": SAMPLE}}

    def test_the_same_seed_draws_the_same(self):
        first = mutations.draw(self.TEXTS, 12, 1)
        self.assertEqual(first, mutations.draw(self.TEXTS, 12, 1))
        self.assertNotEqual(first, mutations.draw(self.TEXTS, 12, 2))
        self.assertEqual(first[:6], mutations.draw(self.TEXTS, 6, 1))

    def test_areas_and_kinds_are_drawn_evenly(self):
        drawn = mutations.draw(self.TEXTS, 16, 1)
        self.assertEqual([sum(area == wanted for area, _ in drawn) for wanted in ("comm", "shm")], [8, 8])
        self.assertGreaterEqual(len({mutant.operator for _, mutant in drawn}), 6)

    def test_each_is_drawn_once_and_no_more_than_there_are(self):
        drawn = mutations.draw(self.TEXTS, 1000, 1)
        places = [(mutant.file, mutant.line, mutant.operator) for _, mutant in drawn]
        self.assertEqual(len(places), len(set(places)))
        self.assertEqual(set(places), {(file, x.line, x.operator) for files in self.TEXTS.values()
                                       for file, text in files.items() for x in mutations.mutants_in(file, text)})


# `cmake` configures, and compiles what has no "{}"; `ctest` passes unless a mistake is in line 6 of the file.
CMAKE = """#!/bin/sh
if [ "$1" = --preset ]; then
  mkdir -p "build/$2"
  printf 'area|comm||src/comm/a.cpp\\ntest|comm_test|base|tests/comm/a_test.cpp\\n' >"build/$2/targets.txt"
  printf 'test|other_test|base|tests/shm/a_test.cpp\\n' >>"build/$2/targets.txt"
  printf 'test|gone_test|base|tests/comm/b_test.cpp\\n' >>"build/$2/targets.txt"
  printf 'gtest|comm_test\\ngtest|other_test\\nabsent|gone_test|why\\n' >"build/$2/tests.txt"
else
  echo "$@" >>"$RECORD"
  ! grep -q 'return {}' src/comm/a.cpp
fi
"""
CTEST = """#!/bin/sh
pwd >>"$RECORD"
grep -q 'if (x < least && least != 0) {' src/comm/a.cpp
"""


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.root, self.record = self.home / "tree", self.home / "record"
        (self.root / "src/comm").mkdir(parents=True)
        (self.root / "src/comm/a.cpp").write_text(SAMPLE)
        (self.root / ".gitignore").write_text("/build/\n/.setup/\n")
        (self.root / ".setup").mkdir()
        (self.root / ".setup/torch").write_text("/nowhere\n")
        (self.home / "bin").mkdir()
        # No namespace: a test needs none, and not every host gives one.
        for name, text in (("cmake", CMAKE), ("ctest", CTEST), ("unshare", "#!/bin/sh\nexit 1\n")):
            (self.home / "bin" / name).write_text(text)
            (self.home / "bin" / name).chmod(0o755)
        for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -q -m first"):
            subprocess.run(["git", "-C", self.root, *command.split()], check=True)
        # What is not committed is neither tried nor touched.
        (self.root / "src/comm/a.cpp").write_text("mine\n")

    def run_tool(self, *more, **env):
        done = subprocess.run(
            [sys.executable, "-B", TOOLS / "mutants.py", "--root", self.root, "--areas", "comm", *more],
            capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", "RECORD": str(self.record), **env})
        self.assertEqual((self.root / "src/comm/a.cpp").read_text(), "mine\n")
        self.assertFalse((self.root / "build/mutants/tree").exists())
        listed = subprocess.run(["git", "-C", self.root, "worktree", "list"], capture_output=True, check=True).stdout
        self.assertEqual(listed.count(b"\n"), 1, listed)
        return done

    def results(self):
        return json.loads((self.root / "build/mutants/mutants.json").read_text())["mutants"]

    def test_killed_survived_and_does_not_compile(self):
        done = self.run_tool("--count", "100")
        self.assertEqual(done.returncode, 0, done.stderr)
        for mutant in self.results():
            wanted = "does not compile" if mutant["operator"] == "return value" else \
                "killed" if mutant["line"] == 6 else "survived"
            self.assertEqual(mutant["result"], wanted, mutant)
            self.assertEqual(mutant["by"], "comm_test" if wanted == "killed" else None)
        record = self.record.read_text()
        self.assertIn("--target comm_test\n", record)
        self.assertNotIn("other_test", record)
        text = (self.root / "build/mutants/report.md").read_text()
        self.assertRegex(text, r"\| comm \| (\d+) \| \d+ \| \d+ \| 3 \| \d+ % \|")
        self.assertIn("- `src/comm/a.cpp:9` dropped statement:\n  `total_ += x;` dropped\n", text)

    def test_other_tests_can_be_named(self):
        self.assertEqual(self.run_tool("--count", "1", "--tests", "comm=other_test|comm_test").returncode, 0)
        self.assertIn("--target comm_test other_test\n", self.record.read_text())
        refused = self.run_tool("--count", "1", "--tests", "shm=other_test")
        self.assertIn("not AREA=TEST|TEST of one of comm", refused.stderr)

    def test_a_list_tries_nothing(self):
        done = self.run_tool("--count", "3", "--list")
        self.assertEqual(done.stdout.count("src/comm/a.cpp:"), 3)
        self.assertFalse(self.record.exists())

    def test_it_goes_on_where_it_was_stopped(self):
        self.run_tool("--count", "8")
        whole = self.results()
        path = self.root / "build/mutants/mutants.json"
        record = json.loads(path.read_text())
        record["mutants"] = [{**x, "seconds": 1234.5} for x in record["mutants"][:5]]
        path.write_text(json.dumps(record))
        self.run_tool("--count", "8", "--resume")
        self.assertEqual([x["seconds"] == 1234.5 for x in self.results()], [True] * 5 + [False] * 3)
        self.assertEqual([x["result"] for x in self.results()], [x["result"] for x in whole])
        refused = self.run_tool("--count", "9", "--resume")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("is of another count", refused.stderr)

    def test_what_cannot_be_tried_is_said_and_leaves_nothing(self):
        (self.home / "bin/ctest").write_text("#!/bin/sh\nexit 1\n")
        self.assertIn("comm_test fails without a mistake", self.run_tool().stderr)
        (self.home / "bin/cmake").write_text(CMAKE.replace("! grep", "echo no; exit 1; grep"))
        self.assertIn("HEAD does not compile:\nno", self.run_tool().stderr)
        (self.home / "bin/cmake").write_text("#!/bin/sh\necho no such preset; exit 1\n")
        self.assertIn("no such preset", self.run_tool().stderr)
        (self.root / ".setup/torch").unlink()
        self.assertIn("call make setup first", self.run_tool().stderr)

    def test_a_signal_leaves_nothing(self):
        (self.home / "bin/ctest").write_text(textwrap.dedent("""\
            #!/bin/sh
            kill -TERM $PPID
            exec sleep 60
            """))
        self.assertEqual(self.run_tool().returncode, 143)


if __name__ == "__main__":
    unittest.main()
