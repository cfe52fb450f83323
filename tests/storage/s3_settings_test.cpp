#include "storage/s3_settings.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/s3_url.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Variables = std::map<std::string, std::string>;

storage::S3Settings settings_of(const Variables& variables) {
  return storage::S3Settings::from_env(
      base::Env([&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      }));
}

std::string refusal_of(const Variables& variables) {
  return test::refusal([&] { settings_of(variables); });
}

class S3SettingsTest : public testing::Test {
 protected:
  Variables files(const std::string& credentials, const std::string& config,
                  Variables more = {}) const {
    more["AWS_SHARED_CREDENTIALS_FILE"] = folder_.file("credentials", credentials);
    more["AWS_CONFIG_FILE"] = folder_.file("config", config);
    return more;
  }

  test::TempFolder folder_;
};

TEST_F(S3SettingsTest, WithoutAnythingAreAmazonsAndAnonymous) {
  const storage::S3Settings settings = settings_of({{"HOME", folder_.path()}});
  EXPECT_EQ(settings.access_key, "");
  EXPECT_EQ(settings.url("models", "a b/c+"),
            "https://models.s3.us-east-1.amazonaws.com/a%20b/c%2B");
  EXPECT_EQ(settings.url("my.models", "x"), "https://s3.us-east-1.amazonaws.com/my.models/x");
}

TEST_F(S3SettingsTest, TheEnvironmentWins) {
  const storage::S3Settings settings =
      settings_of(files("[default]\naws_access_key_id = file\naws_secret_access_key = file\n",
                        "[default]\nregion = eu-west-1\n",
                        {{"AWS_ACCESS_KEY_ID", "a"},
                         {"AWS_SECRET_ACCESS_KEY", "b"},
                         {"AWS_SESSION_TOKEN", "c"},
                         {"AWS_DEFAULT_REGION", "us-west-2"},
                         {"AWS_ENDPOINT_URL", "http://one:9000/"},
                         {"LOCKSTEP_S3_TIMEOUT", "7"}}));
  EXPECT_EQ(settings.access_key + settings.secret_key + settings.session_token, "abc");
  EXPECT_EQ(settings.region, "us-west-2");
  EXPECT_EQ(settings.url("models", "k"), "http://one:9000/models/k");
  EXPECT_EQ(settings.timeout, std::chrono::seconds(7));
}

TEST_F(S3SettingsTest, AProfileComesFromBothFiles) {
  const Variables variables = files(
      "[other]\naws_access_key_id=no\n[night]\naws_access_key_id = k\n"
      "aws_secret_access_key = s=with=equals\n",
      "# comment\n[profile night]\nregion = eu-west-1\ns3 =\n  addressing_style = virtual\n"
      "  endpoint_url = http://minio:9000\noutput = json\n",
      {{"AWS_PROFILE", "night"}});
  const storage::S3Settings settings = settings_of(variables);
  EXPECT_EQ(settings.access_key, "k");
  EXPECT_EQ(settings.secret_key, "s=with=equals");
  EXPECT_EQ(settings.region, "eu-west-1");
  EXPECT_EQ(settings.url("models", "k"), "http://models.minio:9000/k");
  EXPECT_THAT(settings.origin, HasSubstr("profile night of " + folder_.at("credentials")));
}

TEST_F(S3SettingsTest, MistakesAreNamedAndSecretsAreNot) {
  EXPECT_THAT(refusal_of({{"AWS_ACCESS_KEY_ID", "a"}}),
              HasSubstr("AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not"));
  EXPECT_THAT(refusal_of(files("", "", {{"AWS_PROFILE", "absent"}})),
              HasSubstr("AWS_PROFILE=absent is in neither of"));
  EXPECT_THAT(refusal_of(files("[default]\naws_access_key_id = a\n", "")),
              HasSubstr("must both be there"));
  EXPECT_THAT(refusal_of(files("", "[default]\nrole_arn = arn:x\n")),
              AllOf(HasSubstr("role_arn"), HasSubstr("export-credentials")));
  EXPECT_THAT(refusal_of(files("[default]\nvery-secret\n", "")),
              AllOf(HasSubstr("credentials:2"), Not(HasSubstr("very-secret"))));
  EXPECT_THAT(refusal_of({{"AWS_ENDPOINT_URL", "ftp://x"}}), HasSubstr("'ftp://x' is not http"));
  EXPECT_THAT(refusal_of({{"AWS_ENDPOINT_URL", "http://u:p@h"}}), HasSubstr("is not http://HOST"));
  EXPECT_THAT(refusal_of({{"AWS_REGION", "a/b"}}), HasSubstr("region 'a/b'"));
  EXPECT_THAT(refusal_of({{"AWS_S3_ADDRESSING_STYLE", "odd"}}), HasSubstr("style 'odd'"));
  EXPECT_THAT(refusal_of({{"LOCKSTEP_S3_TIMEOUT", "0"}}), HasSubstr("LOCKSTEP_S3_TIMEOUT"));
}

TEST(S3Url, IsEncodedAndSorted) {
  EXPECT_EQ(storage::percent_encoded("a/b c~_.-\xc3\xa9"), "a%2Fb%20c~_.-%C3%A9");
  EXPECT_EQ(storage::percent_encoded("a/b?", true), "a/b%3F");
  EXPECT_EQ(storage::query_text({{"uploads", ""}, {"prefix", "a b"}, {"list-type", "2"}}),
            "list-type=2&prefix=a%20b&uploads=");
}

}  // namespace
}  // namespace lockstep
