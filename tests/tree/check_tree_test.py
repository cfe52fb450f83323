"""Each rule of tools/check_tree.py on a made-up tree: one case that breaks it, one that does not."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import check_tree  # noqa: E402
from tree import picture  # noqa: E402


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

    def test_private_headers_go_along_the_arrows_only(self):
        headers = {"src/comm/private.h": "#pragma once\n", "src/ddp/private.h": "#pragma once\n"}
        user = {"tests/support/a.cpp": '#include "comm/private.h"\n#include "ddp/private.h"\n'}  # a test may use any
        self.assert_none({**headers, **user, "src/ddp/a.cpp": '#include "comm/private.h"\n'})
        for include in ('"ddp/private.h"', "<ddp/private.h>"):
            self.assert_one({**headers, **user, "src/comm/a.cpp": f"#include {include}\n"},
                            "src/comm/a.cpp:1:", "comm may not use ddp", "base shm")

    def test_private_header_in_a_public_one(self):
        user = {"tests/comm/a_test.cpp": "#include <lockstep/comm/a.h>\n", "src/comm/b.h": "#pragma once\n"}
        for include in ('"comm/b.h"', "<comm/b.h>"):
            self.assert_one({**user, "include/lockstep/comm/a.h": f"#pragma once\n#include {include}\n"},
                            "include/lockstep/comm/a.h:2:", "comm/b.h, a private header, in a public one")

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
        for name, limit in (("src/base/a.cpp", 450), ("apps/lockstep/a.cpp", 450), ("tests/base/a_test.cpp", 500),
                            ("tools/a.py", 500), ("web/a.js", 500), ("apps/lockstep/main.cpp", 100)):
            self.assert_one({name: "\n" * (limit + 1)}, f"{name}:{limit + 1}:", f"the limit is {limit}")
            self.assert_none({name: "\n" * limit})

    def test_long_public_header(self):
        user = {"src/base/a.cpp": "#include <lockstep/base/a.h>\n"}
        name = "include/lockstep/base/a.h"
        self.assert_one({**user, name: "#pragma once\n" + "\n" * 250}, f"{name}:251:", "the limit is 250")
        self.assert_none({**user, name: "#pragma once\n" + "\n" * 249})

    def test_large_folders(self):
        files = {f"src/base/f{number}.cpp": "" for number in range(40)}
        self.assert_none({**files, "src/base/CMakeLists.txt": "", "src/base/more/a.cpp": ""})
        self.assert_one({**files, "src/base/a.cpp": ""}, "src/base:1:", "41 source files", "the limit is 40")

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

    def test_prose_has_120_columns(self):
        long = "word " * 24
        self.assert_one({"docs/a.md": f"# A\n{long}end\n"}, "docs/a.md:2:", "123 columns", "the limit of prose is 120")
        self.assert_one({"docs/a.md": f"- {long}end\n"}, "docs/a.md:1:", "125 columns")
        self.assert_one({"docs/a.md": "```\nx\n```\n" + long + "end\n"}, "docs/a.md:4:")
        self.assert_none({"docs/a.md": f"```sh\n{long}end\n```\n| {long} | x |\n{'평 ' * 59}평\n"})
        self.assert_none({"docs/a.md": f"- https://example.org/{'x' * 120}\n[a]: https://example.org/{'x' * 120}\n"})
        self.assert_none({"docs/a.txt": long + "end\n"})

    # --- words ------------------------------------------------------------------------------------

    def test_words(self):
        for text in ("<<<<<<< HEAD", "# FIXME", "open /home/joe/data", "see https://git.corp/x",
                     "as in lesson 7", "Co-authored-by: x"):
            self.assert_one({"docs/a.md": text + "\n"}, "docs/a.md:1:")
        self.assert_none({"docs/a.md": "=======x\nsee https://pytorch.org/docs and $ROOT/home/x, lessons\n"})

    def test_todo_names_an_issue(self):
        self.assert_one({"src/base/a.cpp": "// TODO: later\n"}, "src/base/a.cpp:1:", "TODO(#issue)")
        self.assert_none({"src/base/a.cpp": "// TODO(#12): later\n", "docs/a.md": "a TODO names an issue\n"})

    # --- derivatives ------------------------------------------------------------------------------

    def test_autograd_functions_are_gradchecked(self):
        source = {"src/ddp/a.cpp": "namespace lockstep::ddp {\nnamespace {\n"
                                   "class Fused : public torch::autograd::Function<Fused> {};\n}\n}\n"}
        other = {"tests/ddp/a_test.cpp": "// FusedNot: see below.\ngradcheck(group, {x}, f);\n"}
        self.assert_one({**source, **other}, "src/ddp/a.cpp:3:", "Fused is not checked", "gradcheck()")
        self.assert_one({**source, "tests/ddp/a_test.cpp": "// Fused\n"}, "src/ddp/a.cpp:3:")
        self.assert_none({**source, "tests/ddp/a_test.cpp": "// Fused.\ngradcheck(group, {x}, f);\n"})

    # --- namespaces -------------------------------------------------------------------------------

    PUBLIC = {"include/lockstep/comm/group.h":
              "#pragma once\nnamespace lockstep::log {\nvoid info();\n}\nnamespace lockstep {\n"
              "class Group {\n public:\n  void run();\n  friend class Access;\n};\n"
              "template <typename T = std::vector<int>>\nT make(const T& x = {});\nTORCH_MODULE(Net);\n}\n",
              "tests/comm/a_test.cpp": "#include <lockstep/comm/group.h>\n"}

    def source(self, text, place="src/comm/a.cpp"):
        return {**self.PUBLIC, place: text}

    def test_private_names_are_in_their_areas_namespace(self):
        for text, name in (("class Secret {};", "Secret"), ("struct Secret final : Base {};", "Secret"),
                           ("enum class Kind : int { A };", "Kind"), ("using Name = int;", "Name"),
                           ("inline constexpr int kLimit = 3;", "kLimit"),
                           ("std::map<int, int> table{{1, 2}};", "table"),
                           ("std::vector<int> parts_of(int x);", "parts_of"), ("class Forward;", "Forward"),
                           ("template <typename T>\nstd::optional<T> maybe(T x) { return {}; }", "maybe"),
                           ("Secret::Secret(int x) : a_(x), b_{x} { run(); }", "Secret"),
                           ("auto call(std::function<int(int)> f = {}) -> int { return 1; }", "call")):
            self.assert_one(self.source(f"namespace lockstep {{\n{text}\n}}\n"),
                            "src/comm/a.cpp:2:", f"lockstep::{name} is declared in no public header", "lockstep::comm")
            for place in ("comm", "comm::detail"):
                self.assert_none(self.source(f"namespace lockstep::{place} {{\n{text}\n}}\n"))
            self.assert_none(self.source(f"namespace lockstep {{\nnamespace {{\n{text}\n}}\n}}\n"))
            self.assert_none(self.source(f"namespace lockstep {{\nnamespace comm {{\n{text}\n}}\n}}\n"))

    def test_public_names_are_in_bare_lockstep(self):
        for text in ("class Group;", "void Group::run() {\n  if (a) { b(); }\n}", "class Access {};",
                     "template <>\nint make<int>(const int& x) { return x; }", "struct Group::Inner {\n int x = {};\n};",
                     "bool operator==(const Group& a, const Group& b) { return true; }",
                     "static_assert(1 == 1);",
                     'const char* Group::name = "class Hidden {";  // class Other {', "LOCKSTEP_REGISTER(Thing);"):
            self.assert_none(self.source(f"namespace lockstep {{\n{text}\n}}  // namespace lockstep\n"))
        self.assert_none(self.source("namespace lockstep::log {\nvoid info() {}\n}\n"))
        self.assert_one(self.source("namespace lockstep::log {\nvoid secret() {}\n}\n"),
                        "src/comm/a.cpp:2:", "lockstep::log::secret")

    def test_what_follows_a_body_is_seen(self):
        for body in ("void Group::run() { if (a) { b(); } }", "Group::Group(int x) : a_{x}, b_(x), c_{{x}} { run(); }",
                     "class Group {\n  struct Part { int x = {}; };\n};", "Group group = {1, {2}};"):
            violations = self.check(self.source(f"namespace lockstep {{\n{body}\nclass Secret;\n}}\n"))
            self.assertTrue(any("lockstep::Secret" in x for x in violations), (body, violations))

    def test_another_areas_namespace(self):
        self.assert_one(self.source("namespace lockstep::ddp {\nclass A {};\n}\n"),
                        "src/comm/a.cpp:1:", "namespace lockstep::ddp in a file of comm", "lockstep::comm")
        self.assert_one(self.source("namespace lockstep::detail {\nclass A {};\n}\n"),
                        "src/comm/a.cpp:1:", "namespace lockstep::detail in a file of comm")
        self.assert_one(self.source("namespace lockstep::shm {\nclass A {};\n}\n"), "src/comm/a.cpp:1:")
        # A forward declaration along an arrow.
        self.assert_none(self.source("namespace lockstep::shm {\nclass A;\nenum class B : int;\n}\n"))
        self.assert_one(self.source("namespace lockstep::ddp {\nclass A;\n}\n"), "src/comm/a.cpp:1:")
        self.assert_none(self.source("namespace std {\nstruct hash {};\n}\nnamespace at {\nclass Tensor;\n}\n"))

    # --- the picture ------------------------------------------------------------------------------

    def test_the_picture_in_the_tour(self):
        page = f"# Tour\n\n{picture.BEGIN}\n{picture.END}\n\nMore.\n"
        files = {"docs/tour.md": page, "src/base/a.cpp": "", "src/shm/a.cpp": "", "src/comm/a.cpp": "",
                 "src/ddp/a.cpp": ""}
        self.assert_one(files, "docs/tour.md:3:", "not the current one", "--picture --write")
        self.assert_none({**files, "docs/tour.md": "# Tour\n"})
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                (Path(root) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(root) / path).write_text(text)

            def run(*more):
                return subprocess.run([sys.executable, TOOLS / "check_tree.py", "--root", root, *more],
                                      capture_output=True, text=True, check=False)
            shown = run("--picture").stdout
            self.assertEqual(shown, "+---------+\n| ddp     |\n| -> comm |\n+---------+\n\n"
                                    "+--------+\n| comm   |\n| -> shm |\n+--------+\n\n"
                                    "+---------+\n| shm     |\n| -> base |\n+---------+\n\n"
                                    "+------+\n| base |\n+------+\n")
            self.assertEqual(run("--picture", "--write").returncode, 0)
            written = (Path(root) / "docs/tour.md").read_text()
            self.assertEqual(written, page.replace(f"{picture.BEGIN}\n", f"{picture.BEGIN}\n```\n{shown}```\n"))
            self.assertEqual(run().stdout, "")
            self.assertEqual(run("--picture", "--write").returncode, 0)
            self.assertEqual((Path(root) / "docs/tour.md").read_text(), written)
            (Path(root) / "docs/tour.md").write_text("# Tour\n")
            refused = run("--picture", "--write")
            self.assertEqual(refused.returncode, 1)
            self.assertIn("has not the markers", refused.stderr)

    def test_the_picture_of_the_whole_table(self):
        uses = {area: used.split() for area, used in check_tree.MAY_USE.items()}
        lines = list(picture.draw(uses))
        self.assertLessEqual(max(map(len, lines)), 100)
        for area in uses:
            self.assertEqual(sum(f"| {area} " in line for line in lines), 1, area)
        arrows = picture.reduced({area: set(used) for area, used in uses.items()})
        self.assertEqual(arrows["ddp"], {"comm"})

        def reach(area, table):
            return set(table[area]).union(*(reach(used, table) for used in table[area]))
        for area in uses:
            self.assertEqual(reach(area, arrows), reach(area, uses), area)

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
