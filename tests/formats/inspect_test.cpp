// `lockstep inspect` as its users run it.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/process/process.h"
#include "formats/safetensors.h"
#include "formats/support.h"
#include "formats/token_file.h"
#include "support/paths.h"
#include "support/s3_server.h"
#include "support/service.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::chrono::seconds kPatience{30};

std::string golden_path(const std::string& name) {
  return testing_support::in_tree("tests/formats/goldens/") + name;
}

base::Output inspect(std::vector<std::string> arguments,
                     const std::map<std::string, std::string>& env = {}) {
  arguments.insert(arguments.begin(), {testing_support::in_build("lockstep"), "inspect"});
  return base::run_process({.argv = std::move(arguments), .env = env},
                           base::Deadline::after(kPatience));
}

std::string output_of(const std::vector<std::string>& arguments) {
  const base::Output output = inspect(arguments);
  EXPECT_EQ(output.status.shell_code(), 0) << output.err;
  return output.out;
}

std::string sidecar_of(const std::string& bytes, const std::string& name) {
  return base::sha256_hex(bytes) + "  " + name + "\n";
}

class Inspect : public testing::Test {
 protected:
  test::TempFolder folder_;
};

TEST_F(Inspect, ShowsATable) {
  const std::string text = output_of({golden_path("state_dict.pth")});
  EXPECT_THAT(text,
              HasSubstr("torch zip, 3.83 kB\n10 tensors, 29 elements, 88 B; CRC-32 of every"));
  EXPECT_THAT(text, HasSubstr("\nlm_head.weight  F32      [4, 3]  48 B  3e667d78  = wte.weight\n"));
  EXPECT_THAT(text, HasSubstr("[3, 2]  12 B  a4cd1bfa  strides [1, 3]\n"));
  EXPECT_THAT(output_of({golden_path("small.safetensors")}), HasSubstr("\n  format = pt\n"));
}

TEST_F(Inspect, ShowsATree) {
  const std::string text = output_of({"--tree", golden_path("checkpoint.pth")});
  EXPECT_THAT(text, HasSubstr("\nmodel/            8 elements   32 B\n  bias            F32 [2]"));
}

TEST_F(Inspect, SpeaksJson) {
  const auto json = nlohmann::json::parse(output_of({golden_path("state_dict.pth"), "--json"}));
  EXPECT_EQ(json["format"], "torch zip");
  EXPECT_EQ(json["num_tensors"], 10);
  EXPECT_EQ(json["tensors"][0]["name"], "wte.weight");
  EXPECT_EQ(json["tensors"][0]["crc32"], "3e667d78");
  EXPECT_EQ(json["tensors"][7]["tied_to"], "wte.weight");
  EXPECT_EQ(json["tensors"][4]["strides"], nlohmann::json({1, 3}));
  EXPECT_TRUE(json["files"][0]["has_checksums"]);
}

TEST_F(Inspect, NamesCannotDriveTheTerminal) {
  const std::string name =
      "w\x1b[31m\r\n\xc2\x9b"
      "31m\xe2\x80\xae한글";
  const std::string path = folder_.at("evil.safetensors");
  formats::SafetensorsWriter writer(path, {{.name = name, .shape = {1}}},
                                    {{"k\x07", "v\x1b]0;x\x07"}});
  writer.append(std::as_bytes(std::span("1234", 4)));
  writer.finish();
  for (const char* way : {"--tree", "--json", "--verify"}) {
    const std::string text = output_of({path, way});
    EXPECT_EQ(text.find_first_of("\x1b\r\x07"), text.npos) << way;
    EXPECT_THAT(text, Not(HasSubstr("\xc2\x9b")));
    EXPECT_THAT(text, Not(HasSubstr("\xe2\x80\xae")));
  }
  EXPECT_THAT(output_of({path}), HasSubstr("w\\x1b[31m\\x0d\\x0a\\xc2\\x9b31m\\xe2\\x80\\xae한글"));
}

TEST_F(Inspect, VerifiesChecksumsAndSidecars) {
  EXPECT_THAT(output_of({"--verify", golden_path("state_dict.pth")}),
              HasSubstr("structure, CRC-32 of 9 records\n"));
  EXPECT_THAT(output_of({"--verify", golden_path("small.safetensors")}),
              HasSubstr("it carries no checksum and has no sidecar"));
  const std::string bytes = test::golden("small.safetensors");
  const std::string path = folder_.file("a.safetensors", bytes);
  folder_.file("a.safetensors.sha256", sidecar_of(bytes, "a.safetensors"));
  EXPECT_THAT(output_of({"--verify", path}), HasSubstr("structure, SHA-256 of its sidecar\n"));
  const auto json = nlohmann::json::parse(output_of({"--verify", "--json", path}));
  EXPECT_TRUE(json["verified"][0]["has_sidecar"]);
  std::string damaged = bytes;
  damaged.back() ^= 1;
  folder_.file("a.safetensors", damaged);
  const base::Output output = inspect({"--verify", path});
  EXPECT_EQ(output.status.code, 1);
  EXPECT_THAT(output.err, HasSubstr("and its sidecar says"));
  EXPECT_THAT(output.out, IsEmpty());
}

TEST_F(Inspect, ADamagedWeightIsNamed) {
  std::string bytes = test::golden("arrays.npz");
  bytes[bytes.find(std::string("\x07\0\0\0\0\0\0\0\xff", 9))] ^= 1;  // of ids
  const base::Output output = inspect({"--verify", folder_.file("a.npz", bytes)});
  EXPECT_EQ(output.status.code, 1);
  EXPECT_THAT(output.err, HasSubstr("tensor \"ids\") has the CRC-32"));
}

TEST_F(Inspect, ConvertsAndRefusesToReplace) {
  const std::string path = folder_.at("out.safetensors");
  EXPECT_THAT(output_of({golden_path("checkpoint.pth"), "--convert", path}),
              HasSubstr("values that are no tensors are left out"));
  const base::Output again = inspect({golden_path("checkpoint.pth"), "--convert", path});
  EXPECT_EQ(again.status.code, 2);
  EXPECT_THAT(again.err, HasSubstr("exists; --force replaces it"));
  output_of({golden_path("checkpoint.pth"), "--convert", path, "--force"});
  EXPECT_THAT(output_of({"--diff", golden_path("checkpoint.pth"), path}),
              HasSubstr("equal: 10 tensors\n"));
  const base::Output other =
      inspect({golden_path("checkpoint.pth"), "--convert", folder_.at("a.onnx")});
  EXPECT_EQ(other.status.code, 2);
}

TEST_F(Inspect, DiffEndsAsDiffDoes) {
  const base::Output different =
      inspect({"--diff", golden_path("state_dict.pth"), golden_path("tar.pth")});
  EXPECT_EQ(different.status.code, 1);
  EXPECT_THAT(different.out, HasSubstr("different: 6 tensors equal, 0 different, 4 and 1 in one"));
  const base::Output trouble = inspect({"--diff", golden_path("state_dict.pth"), "/nonexistent"});
  EXPECT_EQ(trouble.status.code, 2);
  EXPECT_THAT(trouble.err, HasSubstr("/nonexistent"));
  const base::Output json =
      inspect({"--diff", "--json", golden_path("state_dict.pth"), golden_path("tar.pth")});
  EXPECT_EQ(json.status.code, 1);
  EXPECT_EQ(nlohmann::json::parse(json.out)["only_b"], nlohmann::json({"of_view"}));
}

TEST_F(Inspect, ShowsTokens) {
  formats::TokenWriter writer(folder_.at("train.bin"), formats::TokenLayout::NanoGpt, 4);
  writer.append(std::vector<uint32_t>{5, 50256, 3, 7});
  writer.finish();
  const std::string text = output_of({folder_.at("train.bin"), "--verify"});
  EXPECT_THAT(text, HasSubstr("taken for tokens of nanoGPT"));
  EXPECT_THAT(text, HasSubstr("4 tokens of U16, ids from 3 to 50256; first: 5 50256 3 7\n"));
  const auto json = nlohmann::json::parse(output_of({golden_path("tokens.bin"), "--json"}));
  EXPECT_EQ(json["format"], "tokens of llm.c");
  EXPECT_EQ(json["max_id"], 50256);
  EXPECT_EQ(inspect({golden_path("tokens.bin"), "--tree"}).status.code, 2);
}

TEST_F(Inspect, ReadsDeflatedArrays) {
  const std::string path = folder_.file("a.npz", test::golden("deflated.npz"));
  const std::string text = output_of({path, "--verify"});
  EXPECT_THAT(text, HasSubstr("a.npz: npz, 846 B\n4 tensors, 10009 elements, 40 kB; CRC-32"));
  EXPECT_THAT(text, HasSubstr("CRC-32 of 4 records\n"));
  folder_.file("a.npz.sha256", sidecar_of(test::golden("deflated.npz"), "a.npz"));
  EXPECT_THAT(output_of({path, "--verify"}), HasSubstr(", SHA-256 of its sidecar\n"));
  output_of({path, "--convert", folder_.at("a.safetensors")});
  EXPECT_THAT(output_of({"--diff", path, folder_.at("a.safetensors")}), HasSubstr("equal"));
}

class InspectOnS3 : public Inspect {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("s3", test::s3_refusal());
    std::filesystem::create_directories(folder_.at("s3/models/small"));
    const std::string bytes = test::golden("small.safetensors");
    folder_.file("s3/models/small/model.safetensors", bytes);
    folder_.file("s3/models/small/model.safetensors.sha256",
                 sidecar_of(bytes, "model.safetensors"));
    folder_.file("s3/models/tokens.bin", test::golden("tokens.bin"));
    server_ = std::make_unique<test::S3Server>(folder_.at("s3"));
  }

  std::unique_ptr<test::S3Server> server_;
};

TEST_F(InspectOnS3, ShowsFilesAndFolders) {
  const auto show = [&](const std::string& location) {
    const base::Output output = inspect({"--verify", location}, server_->env());
    EXPECT_EQ(output.status.code, 0) << output.err;
    return output.out;
  };
  for (const char* location : {"s3://models/small", "s3://models/small/model.safetensors"}) {
    const std::string text = show(location);
    EXPECT_THAT(text, HasSubstr("\n  format = pt\n")) << location;
    EXPECT_THAT(text,
                HasSubstr("verified s3://models/small/model.safetensors: structure, SHA-256"));
  }
  EXPECT_THAT(show("s3://models/tokens.bin"), HasSubstr("tokens of U16"));
}

TEST_F(InspectOnS3, SaysWhatIsNotThere) {
  const auto refused = [&](const std::string& location, std::map<std::string, std::string> env) {
    const base::Output output = inspect({location}, env);
    EXPECT_NE(output.status.code, 0) << output.out;
    EXPECT_THAT(output.out, IsEmpty());
    return output.err;
  };
  auto env = server_->env();
  EXPECT_THAT(refused("s3://models/absent.safetensors", env), HasSubstr("absent.safetensors"));
  EXPECT_THAT(refused("s3://models/absent", env),
              HasSubstr("s3://models/absent: none of model.safetensors"));
  env["AWS_SECRET_ACCESS_KEY"] = "another";
  EXPECT_THAT(refused("s3://models/small/model.safetensors", env), HasSubstr("403"));
  env["AWS_ACCESS_KEY_ID"] = "";
  env["AWS_SECRET_ACCESS_KEY"] = "";
  EXPECT_THAT(refused("s3://models/small/model.safetensors", env),
              HasSubstr("the request is anonymous"));
}

TEST_F(Inspect, RefusesWithASentence) {
  const std::pair<std::vector<std::string>, std::pair<int, const char*>> cases[] = {
      {{}, {2, "0 files given, and 1 wanted"}},
      {{"a", "b"}, {2, "2 files given, and 1 wanted"}},
      {{"--diff", "a"}, {2, "1 files given, and 2 wanted"}},
      {{"--tree", "--json", "a"}, {2, "exclude each other"}},
      {{"--tre", "a"}, {2, "did you mean --tree?"}},
      {{folder_.at("missing")}, {1, "missing"}},
      {{folder_.path()}, {2, "none of model.safetensors, model.safetensors.index.json"}},
      {{folder_.file("text.txt", "some text")}, {1, "not a file that inspect knows: safetensors"}},
      {{folder_.file("odd.bin", "abc")}, {1, "3 bytes are no file of tokens"}},
      {{folder_.file("cut.pth", test::golden("state_dict.pth").substr(0, 2000))},
       {1, "it is truncated or not a zip file"}},
  };
  for (const auto& [arguments, expected] : cases) {
    const base::Output output = inspect(arguments);
    EXPECT_EQ(output.status.code, expected.first) << output.err;
    EXPECT_THAT(output.err, HasSubstr(expected.second));
    EXPECT_THAT(output.out, IsEmpty());
  }
  EXPECT_THAT(output_of({"--help"}), HasSubstr("lockstep inspect --diff before.pth after"));
}

}  // namespace
}  // namespace lockstep
