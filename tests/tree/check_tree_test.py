"""Each rule of tools/check_tree.py on a made-up tree: one case that breaks it, one that does not."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import check_tree  # noqa: E402


class CheckTree(unittest.TestCase):
    def check(self, files, targets=None):
        """The violations in a tree of {path: text}; targets: the lines of targets.txt."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                (Path(root) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(root) / path).write_text(text, encoding="utf-8")
            listed = None
            if targets is not None:
                listed = Path(root) / "build" / "targets.txt"
                listed.parent.mkdir()
                listed.write_text("\n".join(targets) + "\n")
            return check_tree.Checker(root, listed).run()

    def assert_one(self, files, start, *words, targets=None):
        violations = self.check(files, targets)
        self.assertEqual(len(violations), 1, violations)
        self.assertTrue(violations[0].startswith(start), violations)
        for word in words:
            self.assertIn(word, violations[0])
        self.assertIn("; ", violations[0])  # the way to mend it

    def assert_none(self, files, targets=None):
        self.assertEqual(self.check(files, targets), [])

    # --- the dependency table ---------------------------------------------------------------------

    def test_private_header_of_an_area_that_may_not_be_used(self):
        files = {"src/ddp/a.cpp": '\n#include "train/b.h"\n', "src/train/b.h": "#pragma once\n"}
        self.assert_one(files, "src/ddp/a.cpp:2:", "ddp may not use train", "base comm")

    def test_public_header_of_an_area_that_may_not_be_used(self):
        files = {"include/lockstep/comm/a.h": "#pragma once\n#include <lockstep/launch/b.h>\n",
                 "include/lockstep/launch/b.h": "#pragma once\n",
                 "tests/comm/a_test.cpp": "#include <lockstep/comm/a.h>\n"}
        self.assert_one(files, "include/lockstep/comm/a.h:2:", "comm may not use launch")

    def test_areas_that_may_be_used(self):
        self.assert_none({"src/ddp/a.cpp": '#include "comm/b.h"\n#include <lockstep/base/c.h>\n#include "ddp/d.h"\n',
                          "src/comm/b.h": "#pragma once\n",
                          "include/lockstep/base/c.h": "#pragma once\n", "src/ddp/d.h": "#pragma once\n"})

    def test_tests_and_programs_may_use_any_area(self):
        self.assert_none({"tests/ddp/a_test.cpp": '#include "train/b.h"\n', "src/train/b.h": "#pragma once\n",
                          "apps/lockstep-torch/x.cpp": '#include "train/b.h"\n'})

    def test_umbrella_header_inside_the_library(self):
        umbrella = {"include/lockstep/lockstep.h": "#pragma once\n"}
        self.assert_one({**umbrella, "src/ddp/a.cpp": "#include <lockstep/lockstep.h>\n"},
                        "src/ddp/a.cpp:1:", "umbrella")
        self.assert_none({**umbrella, "examples/00_a.cpp": "#include <lockstep/lockstep.h>\n",
                          "tests/ddp/a_test.cpp": "#include <lockstep/lockstep.h>\n"})

    def test_include_that_climbs(self):
        self.assert_one({"src/comm/a.cpp": '#include "../base/b.h"\n', "src/base/b.h": "#pragma once\n"},
                        "src/comm/a.cpp:1:", "../base/b.h", "name the area")

    def test_libtorch_headers(self):
        for header in ("torch/torch.h", "ATen/ATen.h", "c10/core/Device.h"):
            for place in ("src/launch/a.cpp", "tests/base/a_test.cpp", "apps/lockstep/a.cpp"):
                self.assert_one({place: f"#include <{header}>\n"}, f"{place}:1:", header, "without libtorch")
            self.assert_none({"src/comm/a.cpp": f"#include <{header}>\n",
                              "apps/lockstep-torch/a.cpp": f"#include <{header}>\n"})

    def test_uses_of_a_target(self):
        files = {"src/launch/a.cpp": "", "src/launch/CMakeLists.txt": ""}
        self.assert_one(files, "src/launch/CMakeLists.txt:1:", "launch may not use comm",
                        targets=["area|launch|base,comm|src/launch/a.cpp"])
        self.assert_none(files, ["area|launch|base,storage|src/launch/a.cpp"])

    def test_uses_of_an_area_that_is_not_in_the_table(self):
        self.assert_one({"src/misc/a.cpp": ""}, "src/misc/CMakeLists.txt:1:", "misc",
                        targets=["area|misc|base|src/misc/a.cpp"])

    def test_the_program_without_libtorch(self):
        files = {"apps/lockstep/main.cpp": "", "apps/lockstep-torch/main.cpp": ""}
        torch = "program|lockstep-torch|base,train|apps/lockstep-torch/main.cpp"
        self.assert_one(files, "apps/lockstep/CMakeLists.txt:1:", "may not use train",
                        targets=["program|lockstep|base,train|apps/lockstep/main.cpp", torch])
        self.assert_none(files, ["program|lockstep|base,launch|apps/lockstep/main.cpp", torch])

    # --- every file is built ----------------------------------------------------------------------

    def test_source_file_in_no_target(self):
        for name in ("src/base/a.cpp", "apps/lockstep/a.cpp", "tests/base/a_test.cpp", "examples/00_a.cpp",
                     "src/cuda/a.cu"):
            self.assert_one({name: ""}, f"{name}:1:", "in no target", targets=[])
            self.assert_none({name: ""}, [f"area|base||{name}"])

    def test_projects_of_their_own_are_not_in_our_targets(self):
        self.assert_none({"tests/install/user/CMakeLists.txt": "project(user)\n",
                          "tests/install/user/main.cpp": ""}, [])

    def test_target_that_names_a_missing_file(self):
        self.assert_one({"src/base/a.cpp": ""}, "src/base/CMakeLists.txt:1:", "src/base/b.cpp", "not there",
                        targets=["area|base||src/base/a.cpp,src/base/b.cpp"])

    def test_header_that_nobody_includes(self):
        header = {"src/base/a.h": "#pragma once\n"}
        self.assert_one(header, "src/base/a.h:1:", "nobody includes")
        self.assert_none({**header, "src/base/a.cpp": '#include "base/a.h"\n'})
        self.assert_none({**header, "src/base/a.cpp": '#include "a.h"\n'})

    # --- sizes ------------------------------------------------------------------------------------

    def test_long_files(self):
        for name, limit in (("src/base/a.cpp", 500), ("tools/a.py", 500), ("web/a.js", 500),
                            ("apps/lockstep/main.cpp", 100)):
            self.assert_one({name: "\n" * (limit + 1)}, f"{name}:{limit + 1}:", f"the limit is {limit}")
            self.assert_none({name: "\n" * limit})

    def test_long_public_header(self):
        user = {"src/base/a.cpp": "#include <lockstep/base/a.h>\n"}
        name = "include/lockstep/base/a.h"
        self.assert_one({**user, name: "#pragma once\n" + "\n" * 250}, f"{name}:251:", "the limit is 250")
        self.assert_none({**user, name: "#pragma once\n" + "\n" * 249})

    # --- layout -----------------------------------------------------------------------------------

    def test_header_layout(self):
        user = {"src/base/a.cpp": '#include "base/a.h"\n'}
        self.assert_one({**user, "src/base/a.h": "\n"}, "src/base/a.h:1:", "#pragma once")
        self.assert_one({**user, "src/base/a.h": "#pragma once\nusing namespace std;\n"},
                        "src/base/a.h:2:", "using namespace")
        self.assert_none({**user, "src/base/a.h": "#pragma once\n// no using namespace here\n"})
        self.assert_none({"src/base/b.cpp": "using namespace std;\n"})

    def test_whitespace(self):
        self.assert_one({"src/base/a.cpp": "\n\tint x;\n"}, "src/base/a.cpp:2:", "tab")
        self.assert_one({"src/base/a.cpp": "int x; \n"}, "src/base/a.cpp:1:", "space at the end")
        self.assert_none({"src/base/a.cpp": "  int x;\n", "Makefile": "all:\n\techo\n"})

    def test_columns_count_characters(self):
        self.assert_one({"src/base/a.cpp": "x" * 101 + "\n"}, "src/base/a.cpp:1:", "101 columns")
        self.assert_none({"src/base/a.cpp": "// " + "평" * 97 + "\n"})

    # --- words ------------------------------------------------------------------------------------

    def test_words(self):
        for text in ("<<<<<<< HEAD", "# FIXME", "open /home/joe/data", "see https://git.corp/x",
                     "as in lesson 7", "Co-authored-by: x"):
            self.assert_one({"docs/a.md": text + "\n"}, "docs/a.md:1:")
        self.assert_none({"docs/a.md": "=======x\nsee https://pytorch.org/docs and $ROOT/home/x, lessons\n"})

    def test_todo_names_an_issue(self):
        self.assert_one({"src/base/a.cpp": "// TODO: later\n"}, "src/base/a.cpp:1:", "TODO(#issue)")
        self.assert_none({"src/base/a.cpp": "// TODO(#12): later\n", "docs/a.md": "a TODO names an issue\n"})

    # --- the program ------------------------------------------------------------------------------

    def test_exit_codes(self):
        def run(root, *more):
            return subprocess.run([sys.executable, TOOLS / "check_tree.py", "--root", root, *more],
                                  capture_output=True, text=True, check=False)
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(run(root).returncode, 0)
            (Path(root) / "a.cpp").write_text("\tx\n")
            self.assertEqual(run(root).returncode, 1)
            self.assertEqual(run(root).stdout, "a.cpp:1: a tab; run `make format`\n")
            missing = run(root, "--targets", "nowhere.txt")
            self.assertEqual(missing.returncode, 1)
            self.assertIn("configure first", missing.stderr)


if __name__ == "__main__":
    unittest.main()
