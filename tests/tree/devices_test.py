"""Which CTests may use a GPU: those with the label cuda. All others test the CPU, on a GPU machine too.

    tests/tree/devices_test.py --build build/release [unittest's arguments]
"""
import argparse
import json
import subprocess
import sys
import unittest

# Their cases pretend GPUs and drivers of their own, or only read texts; they compute on none.
COMPUTE_NOTHING = {"header_examples_marked", "header_examples_tool_test", "image_test", "launch_nodes_test",
                   "launch_ranks_test", "launch_unit_test"}
options = None


def properties(test):
    return {p["name"]: p["value"] for p in test.get("properties", [])}


class Devices(unittest.TestCase):
    def test_without_the_label_cuda_a_test_leaves_the_gpu_alone(self):
        text = subprocess.run(["ctest", "--show-only=json-v1"], cwd=options.build, check=True, capture_output=True,
                              text=True).stdout
        tests = {test["name"]: properties(test) for test in json.loads(text)["tests"]}
        self.assertGreater(len(tests), 20)
        for name, known in tests.items():
            with self.subTest(name):
                leaves_alone = "LOCKSTEP_DEVICE=cpu" in known.get("ENVIRONMENT", [])
                self.assertEqual(leaves_alone, "cuda" not in known["LABELS"] and name not in COMPUTE_NOTHING)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
