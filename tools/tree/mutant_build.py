"""One build that holds many mistakes: in a worktree of its own, each where lockstep_mutant(number) holds. Used by
tools/mutants.py."""
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from tree import functions
from tree.area_tests import Failure

LIMIT_S = 4 * 3600
ERROR = re.compile(r"\b(src/[\w./-]+):(\d+):(?:\d+:)? (?:fatal )?error:")
CONTEXT = re.compile(r"\b(src/[\w./-]+):(\d+)[:,]")


class MutantBuild:
    """The worktree, there while the `with` block lasts, and after it too if it is to be kept; one that is there is used
    again."""

    def __init__(self, root, folder, preset, jobs, keep):
        self.root, self.tree, self.preset, self.jobs, self.keep = root, folder / "tree", preset, jobs, keep
        self.build = self.tree / "build" / preset

    def __enter__(self):
        commit = git(self.root, "rev-parse", "HEAD").strip()
        try:
            if git(self.tree, "rev-parse", "--show-toplevel").strip() != str(self.tree.resolve()):
                raise Failure("another worktree")
            if git(self.tree, "rev-parse", "HEAD").strip() != commit:  # else what is built stays so
                git(self.tree, "checkout", "--quiet", "--force", "--detach", commit)
        except Failure:
            self._remove()
            self.tree.parent.mkdir(parents=True, exist_ok=True)
            git(self.root, "worktree", "add", "--quiet", "--detach", str(self.tree), commit)
        return self

    def __exit__(self, *_):
        if not self.keep:
            self._remove()

    def _remove(self):
        (self.tree / ".deps").unlink(missing_ok=True)
        subprocess.run(["git", "-C", self.root, "worktree", "remove", "--force", self.tree], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.tree, ignore_errors=True)
        git(self.root, "worktree", "prune")

    def configure(self):
        command = ["cmake", "--preset", self.preset, "-DLOCKSTEP_WERROR=OFF"]
        torch = self.root / ".setup" / "torch"
        if self.preset == "release":
            if not torch.is_file():
                raise Failure(".setup/torch is not there: call make setup first")
            command.append(f"-DLOCKSTEP_TORCH={torch.read_text().strip()}")
        deps = self.tree / ".deps"  # some tests start programs that are there
        if (self.root / ".deps").is_dir() and not deps.is_symlink():
            deps.symlink_to((self.root / ".deps").resolve())
        code, text = self._run(command)
        if code != 0:
            raise Failure(f"{' '.join(command)} failed:\n{text[-2000:]}")

    def compile(self, binaries, mutants):
        """Builds the binaries with all of {number: mutant} that compile; returns the numbers of the others."""
        header = self.tree / "src" / functions.MUTANT_HEADER
        if not header.is_file():
            header.write_text(functions.MUTANT_HEADER_TEXT)
        broken = set()
        while True:
            spans = self._weave({number: x for number, x in mutants.items() if number not in broken})
            code, text = self._run(["cmake", "--build", self.build, "-j", str(self.jobs), "--target", *binaries, "--",
                                    "-k", "0"])
            if code == 0:
                return broken
            found = at_fault(text.replace(f"{self.tree}/", ""), spans)
            if not found:
                raise Failure(f"HEAD does not compile, whatever mistakes it has:\n{text[-4000:]}")
            print(f"mutants: {len(found)} do not compile and are taken out: {sorted(found)}", flush=True)
            broken |= found

    def _weave(self, mutants):
        """Writes the files with their mutants; returns {file: spans}."""
        found = {}
        changed = git(self.tree, "diff", "--name-only", "HEAD").splitlines()
        for file in {x.file for x in mutants.values()} | set(changed):
            path, original = self.tree / file, git(self.tree, "show", f"HEAD:{file}")
            inside = {number: x for number, x in mutants.items() if x.file == file}
            try:
                text, found[file] = functions.weave(original, inside) if inside else (original, [])
            except ValueError as error:
                raise Failure(f"{error}; it cannot be tried again in HEAD") from None
            if path.read_text() != text:
                path.write_text(text)
        return found

    def _run(self, command):
        """(exit code, output); all that it started ends with it."""
        with subprocess.Popen([str(x) for x in command], cwd=self.tree, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                              start_new_session=True) as process:
            try:
                text, _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, _ = process.communicate()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            return process.returncode, text


def at_fault(said, spans):
    """The numbers of the mutants that the compiler complains of, as it said it, with paths from the tree's root."""
    for pattern in (ERROR, CONTEXT):  # a template's error may be elsewhere, and then it says who asked for it
        found = set()
        for match in pattern.finditer(said):
            line = int(match.group(2))
            around = [x for x in spans.get(match.group(1), []) if x.first <= line <= x.last]
            if around:
                found |= set(min(around, key=lambda x: x.last - x.first).numbers)
        if found:
            return found
    return set()


def git(root, *arguments):
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
