"""Tests of tools/expect.py, which judges the examples: text and exit code must both be right."""
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "tools" / "expect.py"


def expect(pattern, *command):
    result = subprocess.run([sys.executable, "-B", SCRIPT, pattern, *command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, timeout=60, check=False)
    return result.returncode, result.stdout


class Expect(unittest.TestCase):
    def test_text_and_code_are_right(self):
        code, text = expect("it learned.*\nrank 1", "sh", "-c", "echo 'it learned; well'; echo rank 1 >&2")
        self.assertEqual(code, 0, text)
        self.assertIn("it learned; well", text)

    def test_the_arguments_arrive_as_they_are(self):
        code, text = expect(r"<--help><a b><\$x;y><>", "printf", "<%s>", "--help", "a b", "$x;y", "")
        self.assertEqual(code, 0, text)

    def test_a_failure_after_the_text_is_a_failure(self):
        code, text = expect("it learned", "sh", "-c", "echo it learned; exit 3")
        self.assertNotEqual(code, 0)
        self.assertIn("it ended with code 3", text)

    def test_a_death_after_the_text_is_a_failure(self):
        code, text = expect("it learned", "sh", "-c", "echo it learned; kill -9 $$")
        self.assertNotEqual(code, 0)
        self.assertIn("it ended by signal 9", text)

    def test_another_text_is_a_failure(self):
        code, text = expect("it learned", "echo", "it did not")
        self.assertNotEqual(code, 0)
        self.assertIn("nothing in its output matches: it learned", text)

    def test_a_program_that_is_not_there_is_a_failure(self):
        code, text = expect("", "/nowhere/program")
        self.assertNotEqual(code, 0)
        self.assertIn("cannot start /nowhere/program", text)


if __name__ == "__main__":
    unittest.main()
