// What of a GPU driver is found on made-up hosts, and what it needs of an image.

#include "image/gpu_driver.h"

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text/text.h"
#include "base/unique_fd.h"
#include "image/container.h"
#include "support/job.h"

namespace lockstep::image {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;

// A library that names these versions of glibc, for `machine`.
std::string library_for(const std::vector<std::string>& versions,
                        uint16_t machine = host_machine()) {
  std::string strings("\0", 1);
  for (const std::string& version : versions) {
    strings += version + '\0';
  }
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_ident[EI_DATA] = ELFDATA2LSB;
  head.e_machine = machine;
  head.e_shoff = sizeof head;
  head.e_shentsize = sizeof(Elf64_Shdr);
  head.e_shnum = 3;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_type = SHT_DYNSYM;
  sections[1].sh_link = 2;
  sections[2].sh_offset = sizeof head + sizeof sections;
  sections[2].sh_size = strings.size();
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
  return bytes + strings;
}

// Files under a folder that plays "/".
class GpuDriverFiles : public ::testing::Test {
 protected:
  void file(const std::string& path, const std::string& text = "") {
    fs::create_directories(fs::path(folder_.path() + path).parent_path());
    base::write_file_atomically(folder_.path() + path, text);
  }

  // As NVIDIA's installer leaves it: files with the version, links with the name that is asked for.
  void install(const std::string& folder, const std::string& version) {
    for (const char* stem : {"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"}) {
      const std::string name = fmt::format("{}.so.{}", stem, version);
      file(folder + "/" + name, library_for({"GLIBC_2.2.5", "GLIBC_2.17"}));
      fs::create_symlink(name, folder_.path() + folder + "/" + stem + ".so.1");
    }
  }

  std::string seen(GpuDriverOptions options = {}) {
    options.root = folder_.path();
    const auto driver = find_gpu_driver(options);
    std::string text = driver ? driver->version + ":" : "none";
    for (const DriverLibrary& library : driver ? driver->libraries : std::vector<DriverLibrary>()) {
      text += " " + library.name;
      EXPECT_TRUE(fs::is_regular_file(library.source) && !fs::is_symlink(library.source))
          << library.source;
    }
    return text;
  }

  const std::string& root() const { return folder_.path(); }

  test::TempFolder folder_;
};

// Where a program that starts in this folder as its root finds a library.
std::string found_by_loader(const std::string& root, const std::string& name) {
  for (const std::string& entry : image_environment({}, root)) {
    if (entry.starts_with("LD_LIBRARY_PATH=")) {
      for (const std::string& folder : base::split(entry.substr(entry.find('=') + 1), ':')) {
        if (fs::exists(root + folder + "/" + name)) {
          return folder;
        }
      }
    }
  }
  return "none";
}

constexpr const char* kAll =
    "580.95.05: libcuda.so.1 libcuda.so.580.95.05 libnvidia-ml.so.1 libnvidia-ml.so.580.95.05 "
    "libnvidia-ptxjitcompiler.so.1 libnvidia-ptxjitcompiler.so.580.95.05";

TEST_F(GpuDriverFiles, AreFoundWhereLoadersLook) {
  EXPECT_EQ(seen(), "none");
  install("/usr/lib64", "580.95.05");
  EXPECT_EQ(seen(), "none") << "there is no device";
  file("/dev/nvidiactl");
  EXPECT_EQ(seen(), kAll);
}

TEST_F(GpuDriverFiles, AreFoundWhereTheLoaderIsToldToLook) {
  file("/dev/nvidia0");
  install("/opt/driver/lib", "580.95.05");
  EXPECT_EQ(seen(), "none");
  EXPECT_EQ(seen({.folders = {"/opt/driver/lib"}}), kAll);
  file("/etc/ld.so.conf.d/driver.conf", "# NVIDIA\n/opt/driver/lib  # here\n\ninclude x\n");
  EXPECT_EQ(seen(), kAll);
  install("/opt/other", "555.1");
  file("/etc/ld.so.conf.d/driver.conf", "/opt/other\n/opt/driver/lib\n");
  EXPECT_THAT(seen(), StartsWith("555.1: libcuda.so.1 ")) << "the first one counts";
}

TEST_F(GpuDriverFiles, AreNotWhatOnlyHasTheName) {
  file("/dev/nvidiactl");
  file("/usr/lib64/libcuda.so.1", "text\n");
  EXPECT_EQ(seen(), "none");
  file("/usr/lib64/libcuda.so.1", library_for({}, EM_68K));
  EXPECT_EQ(seen(), "none") << "of another machine";
  file("/usr/local/cuda/stubs/libcuda.so.1", library_for({}));
  EXPECT_EQ(seen({.folders = {"/usr/local/cuda/stubs"}}), "none") << "the toolkit's stub";
  fs::remove(root() + "/usr/lib64/libcuda.so.1");
  fs::create_symlink("nowhere", root() + "/usr/lib64/libcuda.so.1");
  EXPECT_EQ(seen(), "none");
  install("/usr/lib", "580.95.05");
  file("/usr/lib/libcudart.so.13", library_for({}));
  file("/usr/lib/libcuda.so.1.bak", library_for({}));
  file("/usr/lib/libnvidia-glcore.so.580.95.05", library_for({}));
  EXPECT_EQ(seen(), kAll) << "and nothing that computing does not need";
}

// What CUDA loads by name at run time: without one of them some programs start, and then fail.
TEST_F(GpuDriverFiles, AreAllThatCudaLoads) {
  file("/dev/nvidiactl");
  std::string expected = "580.95.05:";
  for (const char* name :
       {"libcuda.so.580.95.05", "libcudadebugger.so.1", "libd3d12core.so", "libdxcore.so",
        "libnvidia-allocator.so.1", "libnvidia-cfg.so.1", "libnvidia-fatbinaryloader.so.580.95.05",
        "libnvidia-gpucomp.so.580.95.05", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4",
        "libnvidia-opencl.so.1", "libnvidia-pkcs11-openssl3.so.580.95.05",
        "libnvidia-pkcs11.so.580.95.05", "libnvidia-ptxjitcompiler.so.1"}) {
    file(std::string("/usr/lib64/") + name, library_for({}));
    expected += std::string(" ") + name;
  }
  EXPECT_EQ(seen(), "none") << "nothing is called libcuda.so.1";
  fs::create_symlink("libcuda.so.580.95.05", root() + "/usr/lib64/libcuda.so.1");
  expected.insert(expected.find(" libcuda.so.580"), " libcuda.so.1");
  EXPECT_EQ(seen(), expected);
}

TEST_F(GpuDriverFiles, TheDeviceNeedNotBeNumberZero) {
  install("/usr/lib64", "580.95.05");
  file("/dev/nvidia3");
  EXPECT_EQ(seen(), kAll);
  fs::remove(root() + "/dev/nvidia3");
  file("/dev/nvidia-caps/nvidia-cap1");
  EXPECT_EQ(seen(), "none") << "that is no device";
}

TEST_F(GpuDriverFiles, ServicesComeWithThem) {
  file("/dev/nvidiactl");
  install("/usr/lib64", "580.95.05");
  const auto services = [&](const std::string& mps) {
    return find_gpu_driver({.root = root(), .mps_folder = mps})->services;
  };
  EXPECT_THAT(services(""), IsEmpty());
  file("/run/nvidia-persistenced/socket");
  file("/tmp/nvidia-mps/control");
  file("/srv/mps/control");
  EXPECT_THAT(services(""), ElementsAre("/run/nvidia-persistenced", "/tmp/nvidia-mps"));
  EXPECT_THAT(services("/srv/mps"), ElementsAre("/run/nvidia-persistenced", "/srv/mps"));
  for (const char* folder : {"/", "//", "/srv/..", "srv/mps"}) {
    EXPECT_THAT(services(folder), ElementsAre("/run/nvidia-persistenced")) << folder;
  }
}

TEST_F(GpuDriverFiles, ProgramsInTheImageFindThem) {
  const auto library_path = [&] {
    for (const std::string& entry : image_environment({"LD_LIBRARY_PATH=/of/host"}, root())) {
      if (entry.starts_with("LD_LIBRARY_PATH=")) {
        return entry.substr(entry.find('=') + 1);
      }
    }
    return std::string("unset");
  };
  EXPECT_EQ(library_path(), "unset");
  file("/run/lockstep/driver/libcuda.so.1", library_for({}));
  EXPECT_EQ(library_path(), "/run/lockstep/driver");
  file("/etc/environment", "LD_LIBRARY_PATH=/opt/lib\n");
  EXPECT_EQ(library_path(), "/run/lockstep/driver:/opt/lib");
}

// cuda-compat, the toolkit's stub, or what the host had that the image was made on.
TEST_F(GpuDriverFiles, TheHostsDriverIsFoundBeforeTheImages) {
  file("/run/lockstep/driver/libcuda.so.1", library_for({}));
  file("/opt/lib/libcuda.so.1", library_for({"GLIBC_2.4"}));
  file("/opt/lib/libcudart.so.13", library_for({}));
  file("/etc/environment", "LD_LIBRARY_PATH=/opt/lib:/opt/more\n");
  EXPECT_EQ(found_by_loader(root(), "libcuda.so.1"), "/run/lockstep/driver");
  EXPECT_EQ(found_by_loader(root(), "libcudart.so.13"), "/opt/lib") << "all else is the image's";
}

// The launcher deals GPUs to ranks by it, and an image that sets it would undo that.
TEST_F(GpuDriverFiles, VisibleDevicesAreTheJobs) {
  file("/etc/environment", "CUDA_VISIBLE_DEVICES=0\n");
  const auto with = image_environment({"CUDA_VISIBLE_DEVICES=2,3"}, root());
  EXPECT_THAT(with, Contains("CUDA_VISIBLE_DEVICES=2,3"));
  EXPECT_THAT(with, Not(Contains("CUDA_VISIBLE_DEVICES=0")));
  EXPECT_THAT(image_environment({}, root()), Contains("CUDA_VISIBLE_DEVICES=0"));
}

TEST_F(GpuDriverFiles, AnOldImageIsToldWhatItLacks) {
  file("/lib64/libc.so.6", library_for({"GLIBC_2.2.5", "GLIBC_2.31", "GLIBC_PRIVATE"}));
  GpuNeeds needs = look_at_gpu_needs(root());
  EXPECT_EQ(needs.num_libraries, 0);
  EXPECT_EQ(needs.image_glibc, "2.31");
  EXPECT_EQ(needs.problem, "") << "no driver has come in, so nothing is needed";
  file("/run/lockstep/driver/libcuda.so.1", library_for({"GLIBC_2.4", "GLIBC_2.27"}));
  file("/run/lockstep/driver/libcuda.so.580.95.05", library_for({"GLIBC_2.27"}));
  needs = look_at_gpu_needs(root());
  EXPECT_EQ(needs.num_libraries, 2);
  EXPECT_EQ(needs.version, "580.95.05");
  EXPECT_EQ(needs.needed_glibc, "2.27");
  EXPECT_EQ(needs.problem, "");
  file("/run/lockstep/driver/libnvidia-nvvm.so.4", library_for({"GLIBC_2.34"}));
  EXPECT_THAT(look_at_gpu_needs(root()).problem,
              HasSubstr("need glibc 2.34, and the image has 2.31"));
  fs::remove(root() + "/lib64/libc.so.6");
  EXPECT_THAT(look_at_gpu_needs(root()).problem, HasSubstr("the image has none"));
  fs::create_directory(root() + "/lib64/libc.so.6");  // it cannot be read, which is not our end
  EXPECT_THAT(look_at_gpu_needs(root()).problem, HasSubstr("the image has none"));
}

TEST_F(GpuDriverFiles, CudaNeedsItsSecondDevice) {
  file("/lib64/libc.so.6", library_for({"GLIBC_2.36"}));
  file("/run/lockstep/driver/libcuda.so.1", library_for({"GLIBC_2.27"}));
  file("/dev/nvidiactl");
  EXPECT_THAT(look_at_gpu_needs(root()).problem, HasSubstr("nvidia-modprobe -u -c=0"));
  file("/dev/nvidia-uvm");
  EXPECT_EQ(look_at_gpu_needs(root()).problem, "");
}

// The image's C library is as hostile as the rest of it.
TEST_F(GpuDriverFiles, ATornLibraryHasNoVersion) {
  const std::string whole = library_for({"GLIBC_2.36", "GLIBC_99999999999.1", "GLIBC_2"});
  file("/library.so", whole);
  EXPECT_EQ(newest_glibc(root() + "/library.so"), GlibcVersion(2, 36)) << "the others are none";
  for (size_t size = 0; size < whole.size(); size += 5) {
    file("/library.so", whole.substr(0, size));
    newest_glibc(root() + "/library.so");
  }
  std::string endless = library_for({"GLIBC_2.36"});
  const size_t size_of_strings =
      sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_size);
  endless.replace(size_of_strings, 8, std::string(8, '\xff'));
  file("/library.so", endless);
  EXPECT_EQ(newest_glibc(root() + "/library.so"), std::nullopt);
  EXPECT_GE(newest_glibc("/proc/self/exe"), GlibcVersion(2, 2));
}

}  // namespace
}  // namespace lockstep::image
