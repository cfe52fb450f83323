#include "formats/hostile.h"
#include "formats/little_endian.h"

namespace lockstep::test {

namespace {

using namespace std::string_literals;

std::string load(const std::string& body) {
  return "\x80\x02" + body + ".";
}

std::string text(const std::string& letters) {
  std::string bytes = "X";
  formats::append_number<uint32_t>(bytes, static_cast<uint32_t>(letters.size()));
  return bytes + letters;
}

std::string storage_id(const std::string& type = "ctorch\nFloatStorage\n", int32_t count = 6) {
  std::string number = "J";
  formats::append_number<int32_t>(number, count);
  return "(" + text("storage") + type + text("0") + text("cpu") + number + "tQ";
}

// A call of _rebuild_tensor_v2 for a float tensor [2, 3], with `tail` after the hooks.
std::string tensor(const std::string& storage, const std::string& tail = "") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "K\0(K\x02K\x03t(K\x03K\x01t\x89"s +
         "ccollections\nOrderedDict\n)R" + tail + "tR";
}

std::string laughs() {
  std::string body = "(]q\0"s;
  for (char level = 1; level < 30; ++level) {
    body +=
        "](h"s + static_cast<char>(level - 1) + "h" + static_cast<char>(level - 1) + "eq" + level;
  }
  return body;
}

std::string copies() {
  std::string body = "(" + text(std::string(1 << 20, 'x')) + "q\0"s;
  for (int i = 0; i < 1000; ++i) {
    body += "h\0"s;
  }
  return body;
}

std::string calls() {
  std::string body = "](" + std::string(100'000, 'N') + "eq\0("s;
  for (int i = 0; i < 1000; ++i) {
    body += "c__builtin__\nset\nh\0\x85R"s;
  }
  return body;
}

std::vector<HostileFile> storages_and_tensors() {
  return {
      {"id-none", load("NQ")},
      {"id-module", load("(" + text("module") + "NNNNtQ")},
      {"storage-of-none", load(storage_id("N"))},
      {"storage-of-size", load(storage_id("ctorch\nSize\n"))},
      {"negative-storage", load(storage_id("ctorch\nFloatStorage\n", -1))},
      {"storage-of-two-sizes",
       load("(" + storage_id() + storage_id("ctorch\nLongStorage\n") + "t")},
      {"tensor-of-none", load(tensor("N"))},
      {"tensor-without-type", load(tensor(storage_id("ctorch.storage\nUntypedStorage\n")))},
      {"tensor-outside", load(tensor(storage_id("ctorch\nFloatStorage\n", 5)))},
      {"tensor-name", load(text("w") + tensor(storage_id("ctorch\nFloatStorage\n", 5)))},
      {"conjugated", load(tensor(storage_id(), "}" + text("conj") + "\x88s"))},
      {"many-arguments", load(tensor(storage_id(), "NN"))},
  };
}

}  // namespace

std::vector<HostileFile> hostile_pickle() {
  std::vector<HostileFile> files{
      {"os-system", load("cos\nsystem\n" + text("id") + "\x85R")},
      {"numpy", load("cnumpy\nndarray\n")},
      {"torch-load", load("ctorch\nload\n")},
      {"eval", load("c__builtin__\neval\n")},
      {"long-name", load("c" + std::string(1000, 'x'))},
      {"opcode-inst", load("ios\nsystem\n")},
      {"opcode-obj", load("o")},
      {"opcode-persid", load("Pid\n")},
      {"opcode-stack-global", load("\x93")},
      {"opcode-pop", load("0")},
      {"protocol-4", load("\x80\x04N")},
      {"long-text", load("X\xff\xff\xff\xff")},
      {"long-number", load("\x8a\x20")},
      {"no-object", load("")},
      {"two-objects", load("NN")},
      {"open-mark", load("N(")},
      {"no-mark", load("t")},
      {"no-value", load("N\x86")},
      {"below-mark", load("N(\x85")},
      {"nothing-to-remember", load("q\x05")},
      {"setitem-on-list", load("]NNs")},
      {"append-to-dict", load("}Na")},
      {"key-alone", load("}(Nu")},
      {"empty-slot", load("h\x05")},
      {"list-in-itself", load("]q\0h\0a"s)},
      {"deep", load(std::string(1000, ']') + std::string(999, 'a'))},
      {"billion-laughs", load(laughs() + "t")},
      {"copies", load(copies() + "t")},
      {"many-copies-by-calls", load(calls() + "t")},
      {"many-marks", load(std::string(1'100'000, '('))},
      {"many-values", load(std::string(1'100'000, 'N'))},
      {"call-text", load(text("f") + ")R")},
      {"call-without-tuple", load("ccollections\nOrderedDict\nNR")},
      {"dict-of-none", load("ccollections\nOrderedDict\nN\x85R")},
      {"call-storage", load("ctorch\nFloatStorage\n)R")},
      {"call-dtype", load("ctorch\nfloat32\n)R")},
      {"class-as-value", load("ctorch\nFloatStorage\n")},
      {"storage-as-value", load(storage_id())},
      {"build-on-dict", load("}}b")},
      {"set-of-none", load("c__builtin__\nset\nN\x85R")},
      {"size-of-none", load("ctorch\nSize\nN\x85R")},
      {"other-encoding", load("c_codecs\nencode\n" + text("a") + text("utf-8") + "\x86R")},
      {"beyond-latin1",
       load("c_codecs\nencode\n" + text("\xed\x95\x9c") + text("latin1") + "\x86R")},
      {"duplicate-key", load("}" + text("a") + "Ns" + text("a") + "Ns")},
      {"list-as-key", load("}]Ns")},
  };
  for (HostileFile& file : storages_and_tensors()) {
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace lockstep::test
