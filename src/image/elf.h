#pragma once

// What the head of an ELF file says: for which machine it is and which loader starts it.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::image {

struct ElfInfo {
  uint16_t machine = 0;     // EM_X86_64, ...
  std::string interpreter;  // "/lib64/ld-linux-x86-64.so.2"; empty: linked statically, or a library
};

// Empty if the file is not an ELF file, or a truncated one. Throws IoError if it cannot be read.
std::optional<ElfInfo> read_elf(const std::string& path);

// The newest GLIBC_x.y that a 64-bit ELF file names in its dynamic strings: of a program or
// library, what it needs; of libc.so.6, what it is. Nothing if there is none or the file
// is something else.
using GlibcVersion = std::pair<int, int>;
std::optional<GlibcVersion> newest_glibc(const std::string& path);

// "x86-64", "aarch64", "machine 42".
std::string machine_name(uint16_t machine);

// The machine that this program itself runs on.
uint16_t host_machine();

}  // namespace lockstep::image
