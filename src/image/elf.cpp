#include "image/elf.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::image {

namespace {

constexpr uint16_t kMaxSegments = 512;
constexpr size_t kMaxInterpreter = 4096;

bool read_at(int fd, uint64_t offset, void* bytes, size_t size) {
  return offset <= INT64_MAX &&
         ::pread(fd, bytes, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

// Only for files in this machine's own layout: the loader of another machine is of no use here.
std::string read_interpreter(int fd) {
  Elf64_Ehdr header{};
  if (!read_at(fd, 0, &header, sizeof header) || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return "";
  }
  for (uint16_t i = 0; i < std::min(header.e_phnum, kMaxSegments); ++i) {
    Elf64_Phdr segment{};
    if (!read_at(fd, header.e_phoff + i * sizeof segment, &segment, sizeof segment)) {
      return "";
    }
    if (segment.p_type == PT_INTERP && segment.p_filesz > 1 &&
        segment.p_filesz <= kMaxInterpreter) {
      std::string path(segment.p_filesz, '\0');
      return read_at(fd, segment.p_offset, path.data(), path.size()) ? path.c_str() : "";
    }
  }
  return "";
}

}  // namespace

std::optional<ElfInfo> read_elf(const std::string& path) {
  const base::UniqueFd fd = base::open_file(path, O_RDONLY | O_NONBLOCK);
  // Class, byte order and machine stand at the same offsets in 32 and 64 bits.
  unsigned char head[20] = {};
  if (!read_at(fd.get(), 0, head, sizeof head) || std::memcmp(head, ELFMAG, SELFMAG) != 0) {
    return std::nullopt;
  }
  const bool little = head[EI_DATA] == ELFDATA2LSB;
  ElfInfo info{.machine = static_cast<uint16_t>(little ? head[18] | head[19] << 8
                                                       : head[19] | head[18] << 8)};
  if (head[EI_CLASS] == ELFCLASS64 && little) {
    info.interpreter = read_interpreter(fd.get());
  }
  return info;
}

namespace {

constexpr uint64_t kMaxStrings = 64u << 20;
constexpr size_t kMaxSections = 4096;

// The text that the section with the dynamic symbols refers to.
std::string dynamic_strings(int fd) {
  Elf64_Ehdr header{};
  if (!read_at(fd, 0, &header, sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr)) {
    return "";
  }
  const auto section = [&](size_t index) {
    Elf64_Shdr found{};
    const bool is_read = index < std::min<size_t>(header.e_shnum, kMaxSections) &&
                         read_at(fd, header.e_shoff + index * sizeof found, &found, sizeof found);
    return is_read ? found : Elf64_Shdr{};
  };
  for (size_t i = 0; i < std::min<size_t>(header.e_shnum, kMaxSections); ++i) {
    if (section(i).sh_type == SHT_DYNSYM) {
      const Elf64_Shdr strings = section(section(i).sh_link);
      std::string text(std::min(strings.sh_size, kMaxStrings), '\0');
      return read_at(fd, strings.sh_offset, text.data(), text.size()) ? text : "";
    }
  }
  return "";
}

}  // namespace

std::optional<GlibcVersion> newest_glibc(const std::string& path) {
  const base::UniqueFd fd = base::open_file(path, O_RDONLY | O_NONBLOCK);
  const std::string strings = dynamic_strings(fd.get());
  const std::string prefix = "GLIBC_";
  std::optional<GlibcVersion> newest;
  for (size_t at = 0; at < strings.size(); at = strings.find('\0', at) + 1) {
    const std::string name = strings.substr(at, strings.find('\0', at) - at);
    GlibcVersion version;
    if (name.starts_with(prefix) && std::sscanf(name.c_str() + prefix.size(), "%4d.%4d",
                                                &version.first, &version.second) == 2) {
      newest = std::max(newest, std::optional(version));
    }
    if (strings.find('\0', at) == std::string::npos) {
      break;
    }
  }
  return newest;
}

std::string machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "aarch64";
    case EM_PPC64:
      return "ppc64";
    case EM_RISCV:
      return "riscv";
    case EM_386:
      return "i386";
    case EM_ARM:
      return "arm";
    case EM_S390:
      return "s390";
    default:
      return fmt::format("machine {}", machine);
  }
}

uint16_t host_machine() {
#if defined(__x86_64__)
  return EM_X86_64;
#elif defined(__aarch64__)
  return EM_AARCH64;
#elif defined(__powerpc64__)
  return EM_PPC64;
#elif defined(__riscv)
  return EM_RISCV;
#else
  return EM_NONE;
#endif
}

}  // namespace lockstep::image
