// Images are built whole or not at all, with what their programs need; mistakes are one sentence.

#include "image/image_build.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "image/image.h"
#include "image/image_fixture.h"
#include "image/libraries.h"
#include "image/tools.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

class ImageBuild : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    fs::create_directories(work_.path() + "/empty");
  }

  // `lockstep image build --from EMPTY FLAGS -o OUTPUT`
  base::Output build(const std::vector<std::string>& flags,
                     const std::string& output = "new.sqsh") {
    std::vector<std::string> argv{program(), "image", "build", "--from", work_.path() + "/empty"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), {"-o", path(output)});
    return run(std::move(argv));
  }

  std::string path(const std::string& name) const { return work_.path() + "/" + name; }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& item : fs::directory_iterator(work_.path())) {
      names.push_back(item.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder work_;
};

TEST_F(ImageBuild, AnEmptyFolderBecomesARootForOneProgram) {
  // A dynamic program, a library of its own that it finds beside itself, a folder, a mount point.
  work_.file("library.c", "int answer(void) { return 42; }\n");
  work_.file("program.c",
             "int printf(const char*, ...);\nint answer(void);\n"
             "int main(void) { printf(\"%d\\n\", answer()); return 0; }\n");
  fs::create_directories(path("extra/inner"));
  work_.file("extra/inner/note", "a note\n");
  const base::Output compiled =
      run({"sh", "-c",
           fmt::format("cd {} && cc -shared -fPIC -o libanswer.so library.c && cc -o program "
                       "program.c -L. -lanswer -Wl,-rpath,'$ORIGIN'",
                       work_.path())});
  ASSERT_TRUE(compiled.status.ok()) << compiled.err;
  const base::Output built =
      build({"--add", path("program"), "--add", path("extra") + ":/opt/extra", "--add",
             path("program") + ":/opt/", "--mkdir", "/scratch/space"});
  ASSERT_EQ(built.status.code, 0) << built.err;
  EXPECT_THAT(built.out,
              AllOf(HasSubstr("adding " + path("program") + " as /usr/local/bin/program"),
                    HasSubstr("packing"), HasSubstr("MiB")));
  EXPECT_EQ(left(), (std::vector<std::string>{"empty", "extra", "libanswer.so", "library.c",
                                              "new.sqsh", "program", "program.c"}));
  EXPECT_TRUE(fs::is_empty(path("empty")));
  EXPECT_EQ(image::check_image({.image = path("new.sqsh")}, "program").program,
            "/usr/local/bin/program");
  const std::string script =
      "program && /opt/program && cat /opt/extra/inner/note && ls -d /scratch/space /data && "
      "command -v kill && grep PATH /etc/environment && /etc/rc echo by rc && id -un";
  const base::Output output =
      run({program(), "image", "enter", path("new.sqsh"), "sh", "-c", script});
  EXPECT_THAT(output.out, StartsWith("42\n42\na note\n")) << output.err;
  EXPECT_THAT(lines(output.out),
              AllOf(Contains("/scratch/space"), Contains("/data"), Contains("by rc"),
                    Contains("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")));
  EXPECT_EQ(output.status.code, 0) << output.err;
}

TEST_F(ImageBuild, KeepsWhatTheFolderHasAndNeverWritesThroughItsLinks) {
  fs::create_directories(path("empty/etc"));
  work_.file("empty/etc/rc", "#!/bin/sh\necho mine\n", 0755);
  work_.file("empty/etc/environment", "MINE=1\n");
  work_.file("host", "untouched\n");
  fs::create_symlink(path("host"), path("empty/etc/resolv.conf"));
  fs::create_directory_symlink(work_.path(), path("empty/opt"));
  fs::create_directories(path("empty/bin"));
  fs::create_symlink("nowhere", path("empty/bin/vi"));  // which busybox would be, too
  const base::Output built = build({});
  ASSERT_EQ(built.status.code, 0) << built.err;
  EXPECT_EQ(base::read_file(path("host")), "untouched\n");
  const base::Output output = run({program(), "image", "enter", path("new.sqsh"), "--", "sh", "-c",
                                   "/etc/rc; cat /etc/environment; readlink /etc/resolv.conf"});
  EXPECT_EQ(output.out,
            "mine\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nMINE=1\n" +
                path("host") + "\n");
  const base::Output through = build({"--add", "cat:/opt/cat", "--force"});
  EXPECT_EQ(through.status.code, 1);
  EXPECT_THAT(through.err, HasSubstr("is a link to something that is not there"));
  EXPECT_FALSE(fs::exists(path("cat")));
}

// The links of a root are the image's: what they name is in the image, or nowhere.
TEST_F(ImageBuild, AFolderIsAddedInsideTheRootWhateverItsLinksSay) {
  fs::create_directories(path("outside"));
  work_.file("outside/victim", "untouched\n");
  fs::create_directories(path("extra/sub"));
  work_.file("extra/note", "new\n");
  work_.file("extra/sub/deep", "deep\n");
  fs::create_directories(path("empty/opt"));
  fs::create_directories(path("empty/srv/data"));
  fs::create_symlink("/srv/data", path("empty/opt/inside"));
  fs::create_symlink(path("outside"), path("empty/opt/outside"));
  fs::create_symlink(path("outside/victim"), path("empty/srv/data/note"));
  const base::Output through = build({"--add", path("extra") + ":/opt/outside"});
  EXPECT_EQ(through.status.code, 1);
  EXPECT_THAT(through.err, AllOf(HasSubstr("is a link to something that is not there"),
                                 HasSubstr("leads to " + path("outside"))));
  EXPECT_EQ(build({"--mkdir", "/opt/outside", "--force"}).status.code, 1);
  const base::Output built = build({"--add", path("extra") + ":/opt/inside", "--force"});
  EXPECT_EQ(built.status.code, 0) << built.err;
  EXPECT_EQ(base::read_file(path("outside/victim")), "untouched\n")
      << "not through a link to a file";
  EXPECT_EQ(std::distance(fs::directory_iterator(path("outside")), fs::directory_iterator()), 1);
  const base::Output output = run({program(), "image", "enter", path("new.sqsh"), "--", "cat",
                                   "/srv/data/note", "/opt/inside/sub/deep"});
  EXPECT_EQ(output.out, "new\ndeep\n") << output.err;
  fs::create_symlink(path("outside"), path("empty/opt/folder"));
  const base::Output file = build({"--add", "cat:/opt/folder", "--force"});
  EXPECT_EQ(file.status.code, 0) << "the link is replaced: " << file.err;
  EXPECT_EQ(std::distance(fs::directory_iterator(path("outside")), fs::directory_iterator()), 1);
}

TEST_F(ImageBuild, WithoutBusyboxTheShellIsTheHosts) {
  // A PATH with all that is needed but busybox.
  fs::create_directories(path("tools"));
  for (const char* tool : {"cp", "mksquashfs", "sh", "kill"}) {
    fs::create_symlink(image::find_tool(tool), path(std::string("tools/") + tool));
  }
  const base::Output built =
      run({program(), "image", "build", "--from", path("empty"), "--output", path("new.sqsh")},
          {{"PATH", path("tools")}});
  ASSERT_EQ(built.status.code, 0) << built.err;
  EXPECT_THAT(built.out, HasSubstr("adding a shell: sh and kill"));
  EXPECT_EQ(run({program(), "image", "enter", path("new.sqsh"), "--", "sh", "-c", "echo $0"}).out,
            "sh\n");
}

TEST_F(ImageBuild, AnOutputIsReplacedOnlyWhenAsked) {
  work_.file("new.sqsh", "precious");
  const base::Output refused = build({});
  EXPECT_EQ(refused.status.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("exists; --force replaces it"));
  EXPECT_EQ(base::read_file(path("new.sqsh")), "precious");
  // What a build that was killed has left is no obstacle.
  fs::create_directories(path("new.sqsh.build/root/etc"));
  work_.file("new.sqsh.partial", "half");
  EXPECT_EQ(build({"--force"}).status.code, 0);
  EXPECT_EQ(left(), (std::vector<std::string>{"empty", "new.sqsh"}));
  EXPECT_NO_THROW(image::read_squashfs(path("new.sqsh")));
}

TEST_F(ImageBuild, OneAtATime) {
  fs::create_directories(path("new.sqsh.build"));
  const base::UniqueFd other = base::open_file(path("new.sqsh.build"), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  const base::Output output = build({});
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.err, HasSubstr("another build of"));
  EXPECT_TRUE(fs::exists(path("new.sqsh.build")));
}

TEST_F(ImageBuild, AFullDiskIsNamedAndLeavesNothing) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root to mount a small disk";
  }
  fs::create_directories(path("disk"));
  // Too small for the root (cp or a copy fails), then for root and image (mksquashfs fails).
  for (const char* size : {"200k", "2300k"}) {
    const base::Output output = run(
        {"unshare", "--mount", "sh", "-c",
         fmt::format("mount -t tmpfs -o size={} none {} && {} image build --from {} -o {}/x.sqsh; "
                     "echo $?; ls -A {}",
                     size, path("disk"), program(), path("empty"), path("disk"), path("disk"))});
    EXPECT_THAT(output.out, ::testing::EndsWith("\n1\n")) << output.err;
    EXPECT_THAT(output.err, HasSubstr("the disk is full"));
    EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
  }
}

TEST_F(ImageBuild, ToolsThatAreMissingAreNamedWithTheirPackage) {
  fs::create_directories(path("none"));
  const auto without = [&](const std::vector<std::string>& tools, const std::string& source) {
    for (const std::string& tool : tools) {
      fs::create_symlink(image::find_tool(tool), path("none/" + tool));
    }
    std::vector<std::string> argv{program(), "image", "build", "-o", path("x.sqsh")};
    argv.push_back(source);
    if (source == "--from") {
      argv.push_back(path("empty"));
    }
    return run(argv, {{"PATH", path("none")}}).err;
  };
  EXPECT_THAT(without({}, "--from"), HasSubstr("apt-get install squashfs-tools"));
  EXPECT_THAT(without({"mksquashfs"}, "--debian"), HasSubstr("apt-get install mmdebstrap"));
  EXPECT_THAT(without({"cp"}, "--from"), HasSubstr("this host has no sh"));
}

struct Mistake {
  std::vector<std::string> arguments;
  std::string says;
};

TEST_F(ImageBuild, MistakesAreOneSentence) {
  const std::string empty = path("empty");
  const std::vector<Mistake> mistakes = {
      {{"bulid"}, "there is no image command bulid; it is build, check or enter"},
      {{"build", "--from", empty}, "no output given"},
      {{"build", "-o", path("x")}, "--from DIR or --debian"},
      {{"build", "--from", empty, "--debian", "-o", path("x")}, "--from DIR or --debian"},
      {{"build", "--from", "/no/such", "-o", path("x")}, "--from /no/such is not a folder"},
      {{"build", "--from", empty, "-o", empty}, "is a folder; name a file"},
      {{"build", "--from", empty, "-o", path("no/such/x")}, "there is no folder"},
      {{"build", "--from", empty, "--python", "r.txt", "-o", path("x")}, "--python needs --debian"},
      {{"build", "--debian", "--python", path("r.txt"), "-o", path("x")}, "No such file"},
      {{"build", "--from", empty, "--add", "no-such-program", "-o", path("x")},
       "there is no no-such-program, and no such program in PATH"},
      {{"build", "--from", empty, "--add", "sh:bin/sh", "-o", path("x")}, "absolute path DST"},
      {{"build", "--from", empty, "--add", "sh:/data", "-o", path("x")}, "end it with a slash"},
      {{"build", "--from", empty, "--mkdir", "data", "-o", path("x")}, "is not an absolute path"},
      {{"build", "--from", empty, "extra"}, "image build takes no argument extra"},
      {{"build", "--form", empty}, "did you mean --from?"},
      {{"check"}, "no image given"},
      {{"check", image(), "extra"}, "image check takes no argument extra"},
      {{"enter", "--mount", "/tmp"}, "no image given"},
      {{"enter", image(), "--mount", "/tmp"}, "names no target"},
      {{"enter", image(), "--container-runtime", "docker"}, "docker is unknown"},
      {{"check", image(), "--program", "none"}, "has no program none"},
  };
  for (const Mistake& mistake : mistakes) {
    std::vector<std::string> argv{program(), "image"};
    argv.insert(argv.end(), mistake.arguments.begin(), mistake.arguments.end());
    const base::Output output = run(argv);
    EXPECT_EQ(output.status.code, 2) << output.err;
    EXPECT_THAT(output.err, HasSubstr(mistake.says));
    EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
  }
  EXPECT_EQ(left(), (std::vector<std::string>{"empty"}));
}

TEST_F(ImageBuild, HelpAtEachLevel) {
  for (const char* command : {"", "build", "check", "enter"}) {
    const base::Output output =
        run({"sh", "-c", fmt::format("{} image {} --help", program(), command)});
    EXPECT_EQ(output.status.code, 0) << output.err;
    EXPECT_THAT(output.out, HasSubstr("Examples:"));
  }
}

TEST_F(ImageBuild, CheckSaysWhatItIs) {
  const base::Output output = run({program(), "image", "check", image(), "--program", "cat"});
  EXPECT_THAT(output.out, AllOf(HasSubstr("zstd, for "), HasSubstr("cat: /usr/bin/cat\n")));
  EXPECT_EQ(output.status.code, 0) << output.err;
}

TEST_F(ImageBuild, LibrariesComeFromTheLoaderAndNotFromTheProgram) {
  EXPECT_THAT(image::needed_libraries(image::find_tool("sh")), Contains(HasSubstr("libc.so")));
  EXPECT_THAT(image::needed_libraries(work_.file("script", "#!/bin/sh\n", 0755)),
              ::testing::IsEmpty());
  // A program that names a loader of its own would have it executed.
  std::string bytes = base::read_file(image::find_tool("sh"), 1u << 30);
  const size_t at = bytes.find("/lib64/ld-linux");
  if (at != std::string::npos) {
    bytes.replace(at, 6, "/tmp//");
    const std::string program = work_.file("hostile", bytes, 0755);
    EXPECT_THROW(image::needed_libraries(program), UsageError);
  }
  work_.file("l.c", "int f(void) { return 0; }\n");
  work_.file("p.c", "int f(void);\nint main(void) { return f(); }\n");
  const base::Output compiled =
      run({"sh", "-c",
           fmt::format("cd {} && cc -shared -fPIC -o libgone.so l.c && cc -o p "
                       "p.c -L. -lgone && rm libgone.so",
                       work_.path())});
  ASSERT_TRUE(compiled.status.ok()) << compiled.err;
  const base::Output output = build({"--add", path("p")});
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.err, AllOf(HasSubstr("libgone.so"), HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_EQ(build({"--add", path("p"), "--no-libs"}).status.code, 0);
}

}  // namespace
}  // namespace lockstep::test
