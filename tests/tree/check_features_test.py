#!/usr/bin/env python3
"""tools/check_features.py finds what is wrong in a table, and nothing in a right one."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/check_features.py"
ROWS = [f"F{i}" for i in range(1, 35)] + [f"S{i}" for i in range(1, 25)]


class CheckFeatures(unittest.TestCase):
    def run_on(self, change=None):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "docs/concepts").mkdir(parents=True)
            (root / "tests/a").mkdir(parents=True)
            (root / "tests/a/a_test.cpp").write_text("TEST(Suite, Holds) {}\nTEST_P(Each, Holds) {}\n")
            (root / "tests/a/cuda_a_test.cpp").write_text("TEST_P(OnDevice, Holds) {}\n")
            lines = {row: f"| {row} | there | here | `Suite.Holds` `Each.Holds` | `OnDevice.Holds` |" for row in ROWS}
            lines["F27"] = "| F27 | there | here | `Suite.Holds` | as on the CPU: the host compares |"
            lines["F31"] = "| F31 | there | not here: it is Python's | | |"
            if change:
                change(lines)
            (root / "docs/concepts/ddp-features.md").write_text("\n".join(lines.values()) + "\n")
            done = subprocess.run([sys.executable, TOOL, "--root", root], capture_output=True, text=True)
            return done.returncode, done.stdout

    def test_a_right_table(self):
        self.assertEqual(self.run_on(), (0, ""))

    def test_a_row_that_is_missing(self):
        code, text = self.run_on(lambda lines: lines.pop("S7"))
        self.assertEqual(code, 1)
        self.assertIn("S7", text)

    def test_a_test_that_does_not_exist(self):
        code, text = self.run_on(lambda lines: lines.update(F2="| F2 | there | here | `Suite.Fails` | `OnDevice.Holds` |"))
        self.assertEqual(code, 1)
        self.assertIn("row F2 names Suite.Fails", text)

    def test_a_row_without_proof(self):
        code, text = self.run_on(lambda lines: lines.update(F3="| F3 | there | here | | `OnDevice.Holds` |"))
        self.assertEqual(code, 1)
        self.assertIn("row F3 names no test;", text)

    def test_a_row_without_proof_on_a_gpu(self):
        code, text = self.run_on(lambda lines: lines.update(F4="| F4 | there | here | `Suite.Holds` | surely |"))
        self.assertEqual(code, 1)
        self.assertIn("row F4 names no test on a GPU", text)

    def test_a_test_that_is_none_for_a_gpu(self):
        code, text = self.run_on(lambda lines: lines.update(F5="| F5 | there | here | `Suite.Holds` | `Suite.Holds` |"))
        self.assertEqual(code, 1)
        self.assertIn("row F5 names Suite.Holds for a GPU", text)

    def test_a_row_of_four_cells(self):
        code, text = self.run_on(lambda lines: lines.update(F6="| F6 | there | here | `Suite.Holds` |"))
        self.assertEqual(code, 1)
        self.assertIn("row F6 has 4 cells", text)


if __name__ == "__main__":
    unittest.main()
