"""tools/mutants.py: which mistakes it draws, how one build holds them, who is said to have noticed one."""
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import mutants  # noqa: E402
from tree import area_tests, functions, mutations  # noqa: E402
from tree.area_tests import Case, Outcome, Test  # noqa: E402
from tree.mutant_build import at_fault  # noqa: E402

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
        self.assertEqual(edits("x = f(c) || c == 'b';", "dropped operand"), {(1, "x = f(c);")})

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

    def test_only_what_runs_is_drawn(self):
        text = "constexpr int f() { return 1; }\nconst int k = 2;\nint g(int x = 3) { return x + 4; }\n"
        drawn = mutations.draw({"comm": {"src/comm/a.cpp": text}}, 100, 1)
        self.assertEqual({(mutant.line, mutant.before) for _, mutant in drawn}, {(3, "4"), (3, "+"), (3, "x + 4")})


PLACES = """namespace lockstep::comm {
namespace {
constexpr int kOne = f({1});
const auto square = [](int x) { return x * x; };
enum class Kind { A, B };
std::array<int, 2> pair{{1, 2}};
template <typename T, int N = 3>
T first(const std::array<T, N>& all) {  // body
  auto inner = [&] { return all[0]; };
  return inner();
}
consteval int two() { return 2; }
}  // namespace
class Group final : public Base<int(int)> {
 public:
  explicit Group(Options options = {1})
      : options_{options}, call_([this] { run(); }), all_{1, {2}} {  // body
    start();
  }
  bool operator()(int x) const noexcept { return x == 1; }  // body
  friend bool operator==(const Group& a, const Group& b) { return a.x_ == b.x_; }  // body
  static constexpr int most() { return 3; }
  [[nodiscard]] std::function<void()> work() const override { return {}; }  // body
  struct Slot {
    int count = 0;
    void take() { ++count; }  // body
  };

 private:
  int x_ = 4;
  std::vector<int> all_{1, 2};
};
Group::Group(int x) try : x_(x) {
  start();
} catch (...) {
  stop();
}
Group::~Group() {  // body
  if (x_) {
    stop();
  }
}
auto Group::size() -> std::map<int, int> {  // body
  return {{x_, 1}};
}
}  // namespace lockstep::comm
"""


class Weave(unittest.TestCase):
    def test_bodies(self):
        found = functions.bodies(PLACES)
        self.assertEqual([PLACES.count("\n", 0, x.start) for x in found],
                         [number for number, line in enumerate(PLACES.split("\n")) if "// body" in line])
        for body in found:
            self.assertEqual((PLACES[body.start], PLACES[body.end - 1]), ("{", "}"))

    def test_a_body_has_a_form_for_each_mistake(self):
        text = "int f(int x) {\n  return x + 1;\n}\nint g() { return 5; }\n"
        inside = mutations.in_bodies("a.cpp", text)
        chosen = {7: next(x for x in inside if x.operator == "sign"), 9: next(x for x in inside if x.after == "2")}
        woven, spans = functions.weave(text, chosen)
        self.assertEqual(woven, """#include "lockstep_mutant.h"
int f(int x) { if (::lockstep_mutant(7)) {
  return x - 1;
}
else if (::lockstep_mutant(9)) {
  return x + 2;
}
else {
  return x + 1;
} }
int g() { return 5; }
""")
        said = "In file included from x.cpp:1:\n{}: note: f\n../../{}:3: error: no\n"
        self.assertEqual([at_fault(said.format("src/a.cpp:6:1", f"src/a.cpp:{line}"), {"src/a.cpp": spans})
                          for line in (1, 2, 4, 5, 7, 8, 10, 11)],
                         [{9}, {7}, {7}, {9}, {9}, {7, 9}, {7, 9}, {9}])
        # An error elsewhere: who asked for it is at fault.
        self.assertEqual(at_fault("src/a.cpp:6:3:   required from here\n/usr/x.h:3:1: error: no\n",
                                  {"src/a.cpp": spans}), {9})
        self.assertEqual(at_fault("src/b.cpp:6:3: error: no\n", {"src/a.cpp": spans}), set())

    def test_what_does_not_run_or_is_not_as_it_was_is_refused(self):
        mutant = mutations.mutants_in("a.cpp", "const int k = 2;\n")[0]
        with self.assertRaisesRegex(ValueError, "mutant 3 is in no function's body"):
            functions.weave("const int k = 2;\n", {3: mutant})
        with self.assertRaisesRegex(ValueError, "a.cpp:1 is not what it was"):
            functions.weave("int f() { return 1 < 2; }\n", {3: mutant})


class Load:
    """A runner whose tests fail as they are told: {(number, whether it is one case): how often}."""

    def __init__(self, **failures):
        self.failures, self.runs = failures, []

    def run(self, _, number, names=None, but=()):
        key = ("alone" if names == ["A.B"] else "all") + str(number)
        self.runs.append((key, but))
        self.failures[key] = self.failures.get(key, 0) - 1
        return Outcome(self.failures[key] < 0, "A.B" if self.failures[key] >= 0 else "")


class Noticed(unittest.TestCase):
    TEST = Test("comm_test", "comm_test", [], ".", {}, 1.5, [Case("A.B", "a_test", 0.5), Case("C.D", "rail_test", 1)])

    def by(self, **failures):
        return mutants.noticed(Load(**failures), self.TEST, 7)

    def test_a_failure_counts_if_it_comes_of_the_mistake(self):
        self.assertEqual(self.by(all7=9, alone7=9), "comm_test: A.B")
        self.assertIsNone(self.by())
        self.assertIsNone(self.by(all7=9, alone7=9, alone0=9))  # it fails without the mistake
        self.assertIsNone(self.by(all7=1))  # it failed once, under load
        self.assertEqual(self.by(all7=9), "comm_test: A.B")  # only after other cases, but always

    def test_a_test_that_ends_before_a_case_has_noticed(self):
        class Ended:
            def run(self, *_, **__):
                return Outcome(False)
        self.assertEqual(mutants.noticed(Ended(), self.TEST, 7), "comm_test")

    def test_cases_that_are_near_come_first_and_once(self):
        runner = Load()
        self.assertIsNone(mutants.killer(runner, 7, "src/comm/backends/rail.cpp", [self.TEST]))
        self.assertEqual(runner.runs, [("all7", ()), ("all7", ["C.D"])])
        self.assertEqual(area_tests.near(self.TEST, "src/comm/test.cpp"), [])

    def test_limits(self):
        self.assertEqual(self.TEST.limit_s(), 10 + 3 * 1.5)
        self.assertEqual(self.TEST.limit_s(["A.B"]), 10 + 3 * 0.5)


class Runs(unittest.TestCase):
    """Of shell scripts as tests."""

    def run_script(self, script, number=7):
        with mock.patch.object(area_tests, "LEAST_LIMIT_S", 1):
            return area_tests.Runner().run(Test("a_test", "a_test", ["sh", "-c", script], "/", {"A": "1"}), number)

    def test_what_a_test_gets(self):
        self.assertTrue(self.run_script('[ "$LOCKSTEP_MUTANT$A" = 71 ] && [ -w "$TMPDIR" ] && [ "$PWD" = / ]').passed)

    def test_one_that_hangs_is_ended(self):
        begin = time.monotonic()
        outcome = self.run_script('echo "[ RUN      ] A.B/1"; echo "$TMPDIR"; sleep 100')
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual((outcome.passed, outcome.case), (False, "A.B/1"))
        self.assertFalse(Path(outcome.text.split("\n")[1]).exists())

    def test_the_case_that_failed(self):
        said = "[ RUN      ] A.B/1\n[  FAILED  ] A.B/1, where GetParam() = 3 (1 ms)\n[ RUN      ] C.D"
        self.assertEqual(self.run_script(f"echo '{said}'; exit 1").case, "A.B/1")
        self.assertEqual(self.run_script("exit 1").case, "")

    def test_what_fails_without_a_mistake_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "test"
            # A.B fails, C.D the first time only, E.F never.
            script.write_text("""#!/bin/sh
for argument; do case "$argument" in --gtest_output=xml:*) output=${argument#*:} ;; esac; done
[ "$GTEST_FAIL_FAST" = 0 ] || exit 7
cat >"$output" <<END
<testsuites><testsuite name="A"><testcase name="B" status="run" file="a.cpp" time="1"><failure/></testcase></testsuite>
<testsuite name="C"><testcase name="D" status="run" file="c.cpp" time="2">$failure</testcase></testsuite>
$others</testsuites>
END
""".replace("$failure", "$([ -f %s/again ] || echo '<failure/>')" % folder)
                              .replace("$others", '$([ -f %s/again ] || echo \'<testsuite name="E"><testcase name="F" '
                                       'status="run" file="e.cpp" time="3"/></testsuite>\'; touch %s/again)'
                                       % (folder, folder)))
            script.chmod(0o755)
            test = Test("a_test", "a_test", [str(script)], "/", {})
            area_tests.Runner().measure(test)
        self.assertEqual((test.cases, test.left_out), ([Case("E.F", "e", 3), Case("C.D", "c", 2)], ["A.B"]))
        self.assertEqual(test.filter_without(["E.F"]), "-E.F:A.B")
        test.command.append("--gtest_filter=A.*-A.X")
        self.assertEqual(test.filter_without([]), "A.*-A.X:A.B")

    def test_nothing_starts_after_the_end(self):
        runner = area_tests.Runner()
        runner.stop()
        with self.assertRaisesRegex(area_tests.Failure, "stopped"):
            runner.run(Test("a_test", "a_test", ["true"], "/", {}), 7)


class InTurn(unittest.TestCase):
    def test_never_two_of_an_area(self):
        both, tried = threading.Barrier(2, timeout=60), []

        def work(task):
            tried.append(task)
            if task != "a3":
                both.wait()  # its partner is of the other area
        mutants.in_turn([("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("a", "a3")], 2, work, lambda: None)
        self.assertEqual([set(tried[:2]), set(tried[2:4]), tried[4]], [{"a1", "b1"}, {"a2", "b2"}, "a3"])

    def test_a_failure_ends_all(self):
        stopped = []

        def work(_):
            raise area_tests.Failure("no")
        with self.assertRaisesRegex(area_tests.Failure, "no"):
            mutants.in_turn([("a", 1), ("a", 2), ("b", 3)], 1, work, lambda: stopped.append(1))
        self.assertEqual(stopped, [1])


if __name__ == "__main__":
    unittest.main()
