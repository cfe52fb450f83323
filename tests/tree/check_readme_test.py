"""Each rule of tools/check_readme.py on a made-up tree: one case that breaks it, one that does not."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_readme  # noqa: E402

# Stands in for the built program; its help has the form that CLI11 prints.
LOCKSTEP = """#!/bin/sh
case $1 in
  --help) printf 'Usage: lockstep SUB\\n\\nSubcommands:\\n  run      start\\n  train    train\\n  bench    time\\n' ;;
  run) printf -- '  --nproc-per-node,--nproc_per_node TEXT  ranks\\n  --isolate   own network\\n'
    printf -- '  --mode a|b\\n      which\\nExamples:\\n  lockstep run ./program --dance\\n' ;;
  train) printf -- '  --set KEY=VALUE ...         override\\n' ;;
  bench) test "$2" = ddp && printf -- '  --model NAME   which\\n' || printf -- '  --bytes LIST   sizes\\n' ;;
  *) exit 2 ;;
esac
"""


class CheckReadme(unittest.TestCase):
    def check(self, readme, files=None):
        with tempfile.TemporaryDirectory() as root:
            tree = {"README.md": readme, "Makefile": "train: build\n\techo\nbuild:\n.PHONY: x\n",
                    "recipes/cats.toml": "", "docs/tour.md": "# The tour\n## 둘째: 평균\n",
                    "bin/lockstep": LOCKSTEP, **(files or {})}
            for path, text in tree.items():
                (Path(root) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(root) / path).write_text(text, encoding="utf-8")
            (Path(root) / "bin/lockstep").chmod(0o755)
            return check_readme.Checker(root, Path(root) / "bin").run()

    def assert_one(self, readme, start, *words, files=None):
        violations = self.check(readme, files)
        self.assertEqual(len(violations), 1, violations)
        self.assertTrue(violations[0].startswith(start), violations)
        for word in words:
            self.assertIn(word, violations[0])
        self.assertIn("; ", violations[0])  # the way to mend it

    def assert_none(self, readme, files=None):
        self.assertEqual(self.check(readme, files), [])

    def test_flags_of_a_command_below_a_sub_command_are_its_own(self):
        self.assert_one("`lockstep bench ddp --bytes 4K`", "README.md:1:", "--bytes")
        self.assert_one("`lockstep bench allreduce --model a`", "README.md:1:", "--model")
        self.assert_none("`lockstep bench ddp --model a` `lockstep bench allreduce --bytes 4K`\n")

    def test_links(self):
        self.assert_one("\n[a](docs/none.md)", "README.md:2:", "docs/none.md")
        self.assert_one("[a](docs/tour.md#none)", "README.md:1:", "#none")
        self.assert_none("[a](docs/tour.md) [b](docs/tour.md#the-tour) [c](docs/tour.md#둘째-평균)\n"
                         "[d](https://example.org/x) `[e](nowhere.md)`")

    def test_pages_under_docs_are_checked_and_resolve_from_where_they_are(self):
        self.assert_one("", "docs/a/b.md:1:", "../none.md", files={"docs/a/b.md": "[x](../none.md)"})
        self.assert_none("", files={"docs/a/b.md": "[x](../tour.md) `recipes/cats.toml`"})

    def test_paths(self):
        self.assert_one("see `recipes/dogs.toml`", "README.md:1:", "recipes/dogs.toml")
        self.assert_one("see `src/*.none`", "README.md:1:", "src/*.none")
        self.assert_one("see `CHANGELOG.md`", "README.md:1:", "CHANGELOG.md")
        self.assert_none("`recipes/cats.toml` `recipes/*.toml` `./recipes/` `Makefile` `docs/`\n"
                         "`build/release/bin/x` `src/<area>` `runs/1/out` `std::vector` `and/or`")

    def test_make_targets(self):
        self.assert_one("run `make dance`", "README.md:1:", "dance")
        self.assert_one("```sh\nmake train\nJOBS=2 make dance -j2 # make fun\n```", "README.md:3:", "dance")
        self.assert_one("```\ncd lockstep && make dance\n```", "README.md:2:", "dance")
        self.assert_none("`make train` `make` `make build JOBS=4 && ls`, make no mistake\n"
                         "```cpp\nmake dance\n```\n```sh\necho make dance\n```")

    def test_sub_commands(self):
        self.assert_one("`lockstep dance`", "README.md:1:", "dance")
        self.assert_one("```console\n$ build/bin/lockstep dance x\n```", "README.md:2:", "dance")
        self.assert_none("`lockstep run` `lockstep` `lockstep --help` `lockstep::init` `find lockstep`\n")

    def test_flags(self):
        self.assert_one("`lockstep run --dance`", "README.md:1:", "--dance")
        self.assert_one("`lockstep train --nproc-per-node 4`", "README.md:1:", "--nproc-per-node")
        self.assert_one("`lockstep run --mode a --dance`", "README.md:1:", "--dance")
        self.assert_none("`lockstep run --nproc_per_node 4 --mode b --isolate ./program --dance`\n"
                         "`lockstep run --isolate -- ./program --dance`\n`lockstep train x.toml --set a=1`\n")

    def test_flags_after_a_line_break_and_of_a_nested_command(self):
        self.assert_one("```sh\nlockstep run --isolate \\\n  --dance\n```", "README.md:2:", "--dance")
        self.assert_one("```sh\nlockstep run --nproc-per-node=4 -- lockstep train --dance\n```",
                        "README.md:2:", "lockstep train has no flag --dance")

    def test_program_that_does_not_run(self):
        self.assert_one("`lockstep run`", "README.md:1:", "does not run", files={"bin/lockstep": "#!/none\n"})

    def test_first_example(self):
        example = {"examples/00_first_light.cpp": "// Intro.\n// [readme]\nint main() {\n}\n// [/readme]\n"}
        self.assert_one("# x\n```cpp\nint main();\n```", "README.md:3:", "00_first_light.cpp", files=example)
        self.assert_one("# x\n", "README.md:1:", "00_first_light.cpp", files=example)
        self.assert_none("```cpp\nother();\n```\n```cpp\nint main() {\n}\n```\n", files=example)
        self.assert_none("```cpp\nint main();\n```")
        self.assert_one("", "README.md:1:", "marks", files={"examples/00_first_light.cpp": "int main() {}\n"})


if __name__ == "__main__":
    unittest.main()
