#!/usr/bin/env python3
"""tools/header_examples.py takes what is marked, refuses code that is not, and takes tables for tables."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/header_examples.py"
UMBRELLA = "#pragma once\n\n#include <lockstep/comm/a.h>\n"


class HeaderExamples(unittest.TestCase):
    def run_on(self, text, umbrella=UMBRELLA):
        """Returns the violations that the check finds in a header, and the C++ made of it."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "include/lockstep/comm").mkdir(parents=True)
            (root / "include/lockstep/lockstep.h").write_text(umbrella)
            (root / "include/lockstep/comm/a.h").write_text(text)
            checked = subprocess.run([sys.executable, TOOL, "--check", "--root", root], capture_output=True, text=True)
            violations = checked.stdout.splitlines()
            self.assertEqual(checked.returncode, 1 if violations else 0, checked.stderr)
            subprocess.run([sys.executable, TOOL, "--out", root / "out.inc", "--root", root], check=True)
            return violations, (root / "out.inc").read_text()

    def test_an_example_becomes_a_function_that_names_its_line(self):
        violations, cpp = self.run_on("// Words.\n//\n// Example:\n//   if (x) {\n//\n//     f();\n//   }\n//\n// Words.\n")
        self.assertEqual(violations, [])
        self.assertIn('int Example1::run() {\n#line 4 "include/lockstep/comm/a.h"\nif (x) {\n\n  f();\n}\n', cpp)
        self.assertIn("kNumExamples = 1;", cpp)

    def test_an_example_inside_a_class_is_indented(self):
        _, cpp = self.run_on("class A {\n  // Example:\n  //   f();\n  //   g();\n  void h();\n};\n")
        self.assertIn("\nf();\ng();\n  return 0;\n", cpp)
        self.assertNotIn("h()", cpp)

    def test_declarations_stay_outside_of_functions(self):
        _, cpp = self.run_on("// Example at namespace scope:\n//   void f();\n")
        self.assertIn('namespace example_1 {\n#line 2 "include/lockstep/comm/a.h"\nvoid f();\n}', cpp)

    def test_each_mark_begins_an_example(self):
        _, cpp = self.run_on("// Example:\n//   f();\n//\n// Example:\n//   g();\n")
        self.assertIn("kNumExamples = 2;", cpp)

    def test_code_without_a_mark_is_refused_once(self):
        for code in ("f();", "for (auto x : all) {", "}", "f();  // a remark"):
            violations, _ = self.run_on(f"// Words.\n//\n//   {code}\n//   {code}\n")
            self.assertEqual(len(violations), 1, code)
            self.assertIn("include/lockstep/comm/a.h:3: code in a comment that is not marked", violations[0])

    def test_a_fence_is_refused(self):
        violations, _ = self.run_on("// ```\n")
        self.assertIn("a fence", violations[0])

    def test_a_mark_without_code_is_refused(self):
        for text in ("// Example:\n", "// Example:\n// f();\n", "// Example:\n//\n// Words.\n"):
            violations, _ = self.run_on(text)
            self.assertIn("a mark without code", violations[0], text)

    def test_tables_and_lists_are_not_code(self):
        self.assertEqual(self.run_on("// Words:\n//\n//   type   meaning\n//   - one;\n//   1. two;\n")[0], [])

    def test_names_of_std_need_their_header(self):
        code = "inline std::string f(int64_t) { return {}; }  // std::vector\n"
        violations, _ = self.run_on(code)
        self.assertEqual([line.split(": ")[1] for line in violations],
                         ["it uses a name of <cstdint>; include that header",
                          "it uses a name of <string>; include that header"])
        self.assertEqual(self.run_on("#include <cstdint>\n#include <string>\n" + code)[0], [])

    def test_the_umbrella_reaches_every_header(self):
        violations, _ = self.run_on("", umbrella="#pragma once\n")
        self.assertIn("include/lockstep/comm/a.h:1: <lockstep/lockstep.h> does not reach", violations[0])


if __name__ == "__main__":
    unittest.main()
