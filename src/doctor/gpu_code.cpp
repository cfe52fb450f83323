// The section .nv_fatbin of a library: one container after the other, each with a head and entries,
// one per architecture. It is not documented; what is read here is what fatbinary(1) has written
// since CUDA 5, and anything unexpected ends the reading.

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "doctor/gpu_probe.h"

namespace lockstep::doctor {

namespace {

constexpr uint32_t kContainerMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;
constexpr uint16_t kMachineCode = 2;
constexpr size_t kMaxLibrary = 1u << 30;

struct ContainerHead {
  uint32_t magic;
  uint16_t version;
  uint16_t head_bytes;
  uint64_t body_bytes;
};

struct EntryHead {
  uint16_t kind;
  uint16_t reserved;
  uint32_t head_bytes;
  uint64_t body_bytes;
  uint32_t packed_bytes;
  uint32_t reserved_too;
  uint16_t minor;
  uint16_t major;
  uint32_t architecture;
};

template <typename Head>
std::optional<Head> head_at(std::string_view bytes, size_t at) {
  Head head{};
  if (at > bytes.size() || bytes.size() - at < sizeof head) {
    return std::nullopt;
  }
  std::memcpy(&head, bytes.data() + at, sizeof head);
  return head;
}

// Empty if there is no such section, or if the file is not what it says.
std::string_view section(std::string_view file, std::string_view name) {
  const auto elf = head_at<Elf64_Ehdr>(file, 0);
  if (!elf || std::memcmp(elf->e_ident, ELFMAG, SELFMAG) != 0 ||
      elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_shentsize != sizeof(Elf64_Shdr)) {
    return {};
  }
  const auto header = [&](size_t index) {
    return head_at<Elf64_Shdr>(file, elf->e_shoff + index * sizeof(Elf64_Shdr));
  };
  const auto part = [&](const Elf64_Shdr& section_header) {
    return section_header.sh_offset <= file.size()
               ? file.substr(section_header.sh_offset, section_header.sh_size)
               : std::string_view();
  };
  const auto names = header(elf->e_shstrndx);
  const std::string_view texts = names ? part(*names) : std::string_view();
  for (size_t i = 0; i < elf->e_shnum; ++i) {
    const auto one = header(i);
    if (one && one->sh_name < texts.size() && texts.substr(one->sh_name).starts_with(name) &&
        texts.substr(one->sh_name + name.size()).starts_with('\0')) {
      return part(*one);
    }
  }
  return {};
}

// In how many containers an architecture has code.
using Counts = std::map<int, int>;

struct Found {
  std::set<int> machine;
  std::set<int> ptx;
};

void count(const std::set<int>& architectures, Counts& counts) {
  for (const int architecture : architectures) {
    ++counts[architecture];
  }
}

// Each source file has a container, and all of them serve a device, or it is not served. Linking
// adds one more, without a kernel in it and for an architecture that nobody asked for.
std::vector<int> most_common(const Counts& counts) {
  int most = 0;
  for (const auto& [architecture, number] : counts) {
    most = std::max(most, number);
  }
  std::vector<int> architectures;
  for (const auto& [architecture, number] : counts) {
    if (number == most) {
      architectures.push_back(architecture);
    }
  }
  return architectures;
}

Found read_container(std::string_view body) {
  Found found;
  for (size_t at = 0; const auto entry = head_at<EntryHead>(body, at);) {
    const uint64_t left = body.size() - at;
    if (entry->head_bytes < sizeof(EntryHead) || entry->head_bytes > left ||
        entry->body_bytes > left - entry->head_bytes) {
      break;
    }
    if (entry->kind == kMachineCode) {
      found.machine.insert(static_cast<int>(entry->architecture));
    } else if (entry->kind == kPtx) {
      found.ptx.insert(static_cast<int>(entry->architecture));
    }
    at += entry->head_bytes + entry->body_bytes;
  }
  return found;
}

}  // namespace

GpuCode read_gpu_code(const std::string& library) {
  std::string file;
  try {
    file = base::read_file(library, kMaxLibrary);
  } catch (const IoError&) {
    return {};
  }
  const std::string_view bytes = section(file, ".nv_fatbin");
  Counts machine, ptx;
  for (size_t at = 0; const auto head = head_at<ContainerHead>(bytes, at);) {
    const uint64_t left = bytes.size() - at;
    if (head->magic != kContainerMagic || head->head_bytes < sizeof(ContainerHead) ||
        head->head_bytes > left || head->body_bytes > left - head->head_bytes) {
      break;
    }
    const Found found = read_container(bytes.substr(at + head->head_bytes, head->body_bytes));
    count(found.machine, machine);
    count(found.ptx, ptx);
    at += head->head_bytes + head->body_bytes;
    at = std::min(bytes.find_first_not_of('\0', at), bytes.size());  // aligned by zeros
  }
  return {most_common(machine), most_common(ptx)};
}

}  // namespace lockstep::doctor
