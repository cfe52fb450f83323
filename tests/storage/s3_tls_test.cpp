// A server with a certificate of its own, and buckets that are hosts, as Amazon has them: what
// reads and writes there must find it, trust it, and trust nobody else.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "storage/parallel_read.h"
#include "storage/s3_storage.h"
#include "support/s3_server.h"
#include "support/service.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
using Variables = std::map<std::string, std::string>;

// "https://127.0.0.1:4123" -> "https://localhost:4123", where buckets have names of their own.
std::string by_name(const std::string& endpoint) {
  const std::string address = "127.0.0.1";
  const size_t at = endpoint.find(address);
  return endpoint.substr(0, at) + "localhost" + endpoint.substr(at + address.size());
}

class S3OverTls : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("s3", test::s3_refusal());
    std::filesystem::create_directory(folder_.at("s3"));
    std::filesystem::create_directory(folder_.at("s3/models"));
    make_certificate("own", "DNS:localhost,DNS:models.localhost,IP:127.0.0.1");
  }

  void make_certificate(const std::string& name, const std::string& hosts) const {
    const base::Output made =
        base::run_process({.argv = {"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                                    "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                                    "/CN=" + name, "-addext", "subjectAltName=" + hosts, "-keyout",
                                    folder_.at(name + ".key"), "-out", folder_.at(name + ".pem")}},
                          base::Deadline::after(std::chrono::seconds(30)));
    ASSERT_TRUE(made.status.ok()) << made.err;
  }

  test::S3ServerOptions with(const std::string& certificate, bool has_virtual_hosts = false) const {
    return {.certificate = folder_.at(certificate + ".pem"),
            .key = folder_.at(certificate + ".key"),
            .has_virtual_hosts = has_virtual_hosts};
  }

  static std::unique_ptr<storage::Storage> storage(const test::S3Server& server,
                                                   const Variables& more) {
    const base::Env env([&](const std::string& name) -> std::optional<std::string> {
      Variables all = server.env();
      for (const auto& [key, value] : more) {
        all[key] = value;
      }
      const auto found = all.find(name);
      return found == all.end() ? std::nullopt : std::optional(found->second);
    });
    return std::make_unique<storage::S3Storage>(storage::parse_location("s3://models/gpt2"),
                                                storage::S3Settings::from_env(env));
  }

  // A large object in parts, a small one, a list, parts of both, and their end.
  static void expect_works(storage::Storage& place) {
    std::string large((9u << 20) + 11, '?');
    for (size_t i = 0; i < large.size(); ++i) {
      large[i] = static_cast<char>(i * 13 + i / 257);
    }
    for (const auto& [path, text] :
         {std::pair<std::string, std::string>{"deep/large", large}, {"a b+c%", "small"}}) {
      const auto writer = place.create(path);
      writer->append(std::string_view(text));
      writer->commit();
      const auto source = place.open(path);
      std::string read(source->size(), '?');
      storage::read_parallel(*source, 0, std::as_writable_bytes(std::span(read)), {4, 1u << 20});
      EXPECT_TRUE(read == text) << path;
    }
    EXPECT_EQ(place.list("").size(), 2u);
    place.remove("deep/large");
    EXPECT_FALSE(place.find("deep/large"));
  }

  test::TempFolder folder_;
};

TEST_F(S3OverTls, BucketsThatAreHosts) {
  const test::S3Server server(folder_.at("s3"), {.has_virtual_hosts = true});
  const auto place = storage(server, {{"AWS_ENDPOINT_URL", by_name(server.endpoint())},
                                      {"AWS_S3_ADDRESSING_STYLE", "virtual"}});
  expect_works(*place);
  EXPECT_TRUE(std::filesystem::exists(folder_.at("s3/models/gpt2"))) << "in the bucket";
}

TEST_F(S3OverTls, ACertificateOfOnesOwnIsTrustedIfItIsNamed) {
  const test::S3Server server(folder_.at("s3"), with("own"));
  ASSERT_THAT(server.endpoint(), HasSubstr("https://"));
  expect_works(*storage(server, {{"AWS_CA_BUNDLE", folder_.at("own.pem")}}));
  const std::string config =
      folder_.file("config", "[default]\nca_bundle = " + folder_.at("own.pem") + "\n");
  expect_works(*storage(server, {{"AWS_CONFIG_FILE", config}}));
  const test::S3Server hosts(folder_.at("s3"), with("own", /*has_virtual_hosts=*/true));
  expect_works(*storage(hosts, {{"AWS_CA_BUNDLE", folder_.at("own.pem")},
                                {"AWS_ENDPOINT_URL", by_name(hosts.endpoint())},
                                {"AWS_S3_ADDRESSING_STYLE", "virtual"}}));
}

// At once: the certificate will be the same in a minute.
TEST_F(S3OverTls, ACertificateThatIsNotTrustedIsSaidAtOnce) {
  const test::S3Server server(folder_.at("s3"), with("own"));
  make_certificate("other", "DNS:localhost,IP:127.0.0.1");
  const auto refused = [&](const Variables& more) {
    const auto begin = base::Clock::now();
    EXPECT_THAT([&] { storage(server, more)->open("a"); },
                ThrowsMessage<IoError>(
                    AllOf(HasSubstr("cannot open s3://models/gpt2/a (https://127.0.0.1:"),
                          HasSubstr("the certificate of the server is not trusted ("),
                          HasSubstr("AWS_CA_BUNDLE=FILE"), Not(HasSubstr("attempts")))));
    EXPECT_LT(base::Clock::now() - begin, std::chrono::seconds(10)) << "LOCKSTEP_S3_TIMEOUT is 20";
  };
  refused({});
  refused({{"AWS_CA_BUNDLE", folder_.at("other.pem")}});
  refused({{"AWS_CA_BUNDLE", folder_.file("garbage", "no certificate")}});
  EXPECT_THAT(
      [&] {
        storage(server, {{"AWS_CA_BUNDLE", folder_.at("none")}});
      },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr(folder_.at("none")), HasSubstr("cannot be read: No such file"))));
  // The right authority for another host.
  make_certificate("elsewhere", "DNS:elsewhere");
  const test::S3Server stranger(folder_.at("s3"), with("elsewhere"));
  EXPECT_THAT(
      [&] {
        storage(stranger, {{"AWS_CA_BUNDLE", folder_.at("elsewhere.pem")}})->open("a");
      },
      ThrowsMessage<IoError>(HasSubstr("the certificate of the server is not trusted (")));
}

}  // namespace
}  // namespace lockstep
