#include "formats/hostile.h"
#include "formats/little_endian.h"
#include "formats/support.h"

namespace lockstep::test {

namespace {

using namespace std::string_literals;

std::string npy(const std::string& header, size_t data_bytes, char version = 1) {
  std::string bytes = "\x93NUMPY"s + version + '\0';
  if (version == 1) {
    formats::append_number<uint16_t>(bytes, static_cast<uint16_t>(header.size()));
  } else {
    formats::append_number<uint32_t>(bytes, static_cast<uint32_t>(header.size()));
  }
  return bytes + header + std::string(data_bytes, 'd');
}

std::string header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }  \n";
}

std::string llmc(uint32_t magic, uint32_t version, uint32_t num_tokens, size_t data_bytes) {
  std::string bytes;
  for (const uint32_t number : {magic, version, num_tokens}) {
    formats::append_number<uint32_t>(bytes, number);
  }
  bytes.resize(1024);
  return bytes + std::string(data_bytes, 't');
}

}  // namespace

std::vector<HostileFile> hostile_npy() {
  return {
      {"empty", ""},
      {"other-magic", "\x93NUMPX\x01\0\0\0\0\0"s},
      {"other-version", npy(header("<f4", "2,"), 8, 4)},
      {"long-header", npy("{", 5).replace(8, 2, "\xff\xff")},
      {"longer-header", npy("{", 5, 2).replace(8, 4, "\xff\xff\xff\xff")},
      {"list", npy("[] ", 4)},
      {"no-order", npy("{'descr': '<f4', 'shape': (2,), }", 8)},
      {"duplicate",
       npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8)},
      {"record-type", npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 8)},
      {"code-behind", npy(header("<f4", "2,") + "import os", 8)},
      {"open-text", npy("{'descr': '<f4", 8)},
      {"fraction", npy(header("<f4", "2.5,"), 8)},
      {"beyond-64-bits", npy(header("<f4", "99999999999999999999,"), 8)},
      {"objects", npy(header("|O", "2,"), 16)},
      {"big-endian", npy(header(">f4", "2,"), 8)},
      {"text", npy(header("<U8", "2,"), 64)},
      {"negative-size", npy(header("<f4", "-2,"), 8)},
      {"overflow", npy(header("<f4", "4611686018427387904, 4"), 8)},
      {"truncated", npy(header("<f4", "2,"), 7)},
      {"bytes-behind", npy(header("<f4", "2,"), 9)},
  };
}

std::vector<HostileFile> hostile_npz() {
  const std::string two = npy(header("<f4", "2,"), 8);
  const std::string four = npy(header("<f4", "4,"), 16);
  const std::string longer = two + std::string(8000, 'd');
  const std::string cut = deflate_of(two).substr(0, deflate_of(two).size() - 3);
  return {
      {"deflated-cut", deflated_npz(cut, two)},
      {"deflated-garbage", deflated_npz(std::string(40, '\xff'), two)},
      {"deflated-less", deflated_npz(deflate_of(four.substr(0, four.size() - 8)), four)},
      {"deflated-more", deflated_npz(deflate_of(two + "more"), two)},
      {"deflated-bytes-behind", deflated_npz(deflate_of(two) + "xx", two)},
      {"deflated-other-size", deflated_npz(deflate_of(longer), longer)},
      {"deflated-other-bytes", deflated_npz(deflate_of(two), flipped(two, "ddd"))},
      {"deflated-text", deflated_npz(deflate_of("some text"), "some text")},
      {"bomb", deflated_npz("x", npy(header("<f4", "1000,"), 4000))},
      {"no-array", zip_of({{"a.npy", npy(header("<f4", "2,"), 8)}, {"b.txt", ""}})},
      {"truncated", zip_of({{"a.npy", npy(header("<f4", "2,"), 7)}})},
      {"deflated", deflated(zip_of({{"a.npy", npy(header("<f4", "2,"), 8)}}))},
      {"flipped-bit", flipped(zip_of({{"a.npy", npy(header("<f4", "2,"), 8)}}), "ddd")},
  };
}

std::vector<HostileFile> hostile_tokens() {
  return {
      {"empty", ""},
      {"odd", "abc"},
      {"other-version", llmc(20240520, 2, 3, 6)},
      {"truncated", llmc(20240520, 1, 3, 5)},
      {"bytes-behind", llmc(20240520, 1, 3, 8)},
      {"count-too-large", llmc(20240520, 1, UINT32_MAX, 6)},
      {"short-header", llmc(20240520, 1, 3, 6).substr(0, 1000)},
  };
}

std::vector<HostileFile> hostile_sidecar() {
  const std::string digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  return {
      {"empty", ""},
      {"digest-alone", digest},
      {"short-digest", digest.substr(1) + "  x"},
      {"other-digits", "g" + digest.substr(1) + "  x"},
      {"two-lines", digest + "  x\n" + digest + "  x\n"},
      {"long", digest + "  " + std::string(10'000, 'x')},
      {"other-file", digest + "  y\n"},
  };
}

std::vector<HostileFile> hostile_any() {
  return {
      {"text", "some text that is no file of weights"},
      {"empty", ""},
      {"elf",
       "\x7f"
       "ELF"},
  };
}

}  // namespace lockstep::test
