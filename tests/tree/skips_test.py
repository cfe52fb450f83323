"""tools/skips.py on made-up results: of gtest, of Python's unittest, of ctest, of a configuration."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "skips.py"
sys.path.insert(0, str(ROOT / "tools"))
import skips  # noqa: E402

GTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="3" name="AllTests"><testsuite name="Zip" tests="3">
<testcase name="Reads" status="run" result="completed" time="0" classname="Zip" />
<testcase name="ReadsMuch/0" status="run" result="skipped" time="0" classname="Zip">
  <skipped message="zip_test.cpp:152&#x0A;reads 5 GB"><![CDATA[zip_test.cpp:152
reads 5 GB]]></skipped>
</testcase>
<testcase name="DISABLED_Never" status="notrun" result="suppressed" time="0" classname="Zip" />
</testsuite></testsuites>
"""
UNITTEST = """test_a (__main__.Case.test_a) ... ok
test_b (__main__.Case.test_b)
What b holds. ... skipped 'no pkg-config'
test_c (__main__.Case) ... skipped "it isn't here"

Ran 3 tests in 0.1s

OK (skipped=2)
"""


def junit(*cases):
    return f"<testsuite name='x'>{''.join(cases)}</testsuite>"


def passed(name, out=""):
    return f"<testcase name='{name}' status='run'><system-out><![CDATA[{out}]]></system-out></testcase>"


def failed(name):
    return f"<testcase name='{name}' status='fail'><failure message=''/></testcase>"


def skipped(name):
    return f"<testcase name='{name}' status='notrun'><skipped message='SKIP_RETURN_CODE=77'/></testcase>"


class Skips(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name) / "build"
        (self.build / "test-results").mkdir(parents=True)
        self.write("tests.txt", "gtest|zip_test\nunittest|python_test\nplain|arm_test\n")

    def write(self, name, text):
        (self.build / name).write_text(text)

    def results(self, *cases, gtest=GTEST):
        self.write("test-results/ctest.xml", junit(*cases))
        if gtest:
            self.write("test-results/zip_test.xml", gtest)
        return skips.read(self.build)

    # --- what was skipped -------------------------------------------------------------------------

    def test_cases_of_gtest(self):
        found = self.results(passed("zip_test"))
        self.assertEqual(found.skipped, {"zip_test/Zip.ReadsMuch/0": "reads 5 GB",
                                         "zip_test/Zip.DISABLED_Never": "its name begins with DISABLED_"})
        self.assertIn("zip_test/Zip.Reads", found.names)
        self.assertEqual(found.problems, [])

    def test_cases_of_a_binary_that_failed_count_too(self):
        found = self.results(failed("zip_test"))
        self.assertIn("zip_test/Zip.ReadsMuch/0", found.skipped)
        self.assertEqual(found.problems, [])

    def test_results_that_are_missing_are_a_problem(self):
        self.assertIn("zip_test ran and left no results", self.results(passed("zip_test"), gtest="").problems[0])
        self.assertIn("zip_test failed", self.results(failed("zip_test"), gtest="").problems[0])
        self.assertIn("zip_test ran and left no results", self.results(passed("zip_test"), gtest="<a>").problems[0])

    def test_results_of_an_earlier_run_do_not_count(self):
        self.assertEqual(self.results(passed("arm_test")).skipped, {})

    def test_cases_of_unittest(self):
        found = self.results(passed("python_test", UNITTEST))
        self.assertEqual(found.skipped, {"python_test/Case.test_b": "no pkg-config",
                                         "python_test/Case.test_c": "it isn't here"})
        self.assertIn("python_test/Case.test_a", found.names)
        self.assertEqual(found.problems, [])

    def test_cases_of_unittest_without_names_are_a_problem(self):
        found = self.results(passed("python_test", "..s\n\nOK (skipped=1)\n"))
        self.assertIn("python_test skipped 1 cases and named 0; give it -v", found.problems)

    def test_this_pythons_unittest_prints_what_is_read(self):
        script = self.build / "a_test.py"
        script.write_text("import unittest\nclass A(unittest.TestCase):\n  def test_a(self):\n"
                          "    '''Has a docstring.'''\n    self.skipTest('why')\n"
                          "  @unittest.skip('for ever')\n  def test_b(self): pass\n"
                          "@unittest.skip('all')\nclass B(unittest.TestCase):\n  def test_c(self): pass\n"
                          "unittest.main()\n")
        done = subprocess.run([sys.executable, script, "-v"], capture_output=True, text=True, check=True)
        found = self.results(passed("python_test", done.stdout + done.stderr))
        self.assertEqual(found.skipped, {"python_test/A.test_a": "why", "python_test/A.test_b": "for ever",
                                         "python_test/B.test_c": "all"})
        self.assertEqual(found.problems, [])

    def test_whole_ctests(self):
        self.assertEqual(self.results(skipped("arm_test")).skipped, {"arm_test": "SKIP_RETURN_CODE=77"})

    def test_this_ctest_writes_what_is_read(self):
        self.write("CTestTestfile.cmake", """
            add_test(arm_test sh -c "exit 77")
            set_tests_properties(arm_test PROPERTIES SKIP_RETURN_CODE 77)
            add_test(off_test true)
            set_tests_properties(off_test PROPERTIES DISABLED ON)
            add_test(python_test cat unittest.txt)
            add_test(bad_test false)
            """)
        self.write("unittest.txt", "x" * 100000 + "\n" + UNITTEST)
        subprocess.run(["ctest", "--output-junit", self.build / "test-results" / "ctest.xml",
                        "--test-output-size-passed", "1000000"], cwd=self.build, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        found = skips.read(self.build)
        self.assertEqual(set(found.skipped), {"arm_test", "off_test", "python_test/Case.test_b",
                                              "python_test/Case.test_c"})
        self.assertEqual(found.problems, [])
        self.assertIn("bad_test", found.names)

    def test_what_is_not_built(self):
        self.write("tests.txt", "absent|image_data_test|a package that it needs was not found\n")
        self.assertEqual(self.results().skipped,
                         {"image_data_test": "not built: a package that it needs was not found"})

    # --- the list ---------------------------------------------------------------------------------

    def strict(self, text, *cases):
        """What --strict has to say with that list."""
        path = self.build / "skips.txt"
        path.write_text(text)
        return list(skips.mistakes(self.results(*cases), skips.read_list(path), "skips.txt"))

    def test_a_listed_skip_is_no_mistake(self):
        text = "# why\n\nzip_test/Zip.ReadsMuch/*: reads 5 GB\n*.DISABLED_*: to be mended\n"
        self.assertEqual(self.strict(text, passed("zip_test")), [])

    def test_an_unlisted_skip_is_one(self):
        said = self.strict("zip_test/Zip.ReadsMuch/*: reads 5 GB\n", passed("zip_test"))
        self.assertEqual(len(said), 1)
        self.assertIn("zip_test/Zip.DISABLED_Never was skipped (its name begins with DISABLED_)", said[0])

    def test_a_pattern_without_a_test_is_one(self):
        said = self.strict("*: anything\nzip_test/Zip.Writes: renamed since\n", passed("zip_test"))
        self.assertEqual(said, ["skips.txt: no test is called zip_test/Zip.Writes; "
                                "mend the pattern or delete the line"])

    def test_a_listed_test_that_runs_is_no_mistake(self):
        self.assertEqual(self.strict("zip_test/*: a machine without zip\n", passed("zip_test")), [])

    def test_a_line_without_a_reason_is_refused(self):
        for line in ("zip_test/Zip.Reads", "zip_test/Zip.Reads:", ": why"):
            with self.assertRaisesRegex(ValueError, "skips.txt:2: not PATTERN: REASON"):
                self.strict(f"#\n{line}\n", passed("zip_test"))

    def test_the_list_of_this_tree_can_be_read(self):
        self.assertTrue(skips.read_list(ROOT / "tests" / "skips.txt"))

    # --- services ---------------------------------------------------------------------------------

    def test_misspelt_services(self):
        known = skips.services()
        self.assertIn("python-torch", known)
        self.assertEqual(skips.wrong_requirements("slurm,ssh", known), [])
        self.assertEqual(skips.wrong_requirements("", known), [])
        self.assertEqual(skips.wrong_requirements("slrum,ssh,", known), ["slrum", "(an empty name)"])

    def test_ci_requires_all_services_that_setup_installs(self):
        line = re.search(r"^export LOCKSTEP_REQUIRE=(\S+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
        # What set-up installs; a device and the large Python packages are not among it.
        wanted = set(skips.services()) - {"device", "python-torch", "python-transformers"}
        self.assertEqual(set(line.group(1).split(",")), wanted)

    # --- the program ------------------------------------------------------------------------------

    def run_tool(self, *more, require=None):
        env = {key: value for key, value in os.environ.items() if key != "LOCKSTEP_REQUIRE"}
        if require is not None:
            env["LOCKSTEP_REQUIRE"] = require
        done = subprocess.run([sys.executable, "-B", TOOL, "--build", self.build, "--list", self.build / "skips.txt",
                               *more], capture_output=True, text=True, check=False, env=env)
        return done.returncode, done.stdout, done.stderr

    def test_the_list_that_is_printed(self):
        self.results(passed("zip_test"))
        self.write("skips.txt", "zip_test/Zip.ReadsMuch/*: needs LOCKSTEP_LONG_TESTS=1\n")
        code, out, _ = self.run_tool()
        self.assertEqual(code, 0)
        self.assertEqual(out, "2 tests or cases were skipped, 1 of them with no reason in skips.txt\n"
                              "zip_test/Zip.ReadsMuch/*: needs LOCKSTEP_LONG_TESTS=1\n"
                              "    zip_test/Zip.ReadsMuch/0: reads 5 GB\n"
                              "in no list:\n"
                              "    zip_test/Zip.DISABLED_Never: its name begins with DISABLED_\n")
        code, out, err = self.run_tool("--strict")
        self.assertEqual(code, 1)
        self.assertIn("skips: zip_test/Zip.DISABLED_Never was skipped", err)
        code, out, _ = self.run_tool("--brief")
        self.assertEqual((code, out.count("\n")), (0, 1))

    def test_no_run_no_list(self):
        self.write("skips.txt", "")
        code, _, err = self.run_tool()
        self.assertEqual(code, 1)
        self.assertIn("call make test first", err)

    def test_requirements(self):
        self.assertEqual(self.run_tool("--requirements", require="s3,ssh")[0], 0)
        self.assertEqual(self.run_tool("--requirements")[0], 0)
        code, _, err = self.run_tool("--requirements", require="s3,shs")
        self.assertEqual(code, 1)
        self.assertIn("LOCKSTEP_REQUIRE names shs; there are arm64, clang", err)


if __name__ == "__main__":
    unittest.main()
