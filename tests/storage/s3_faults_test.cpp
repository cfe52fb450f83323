// What becomes of everything that a server or a network can do wrong: an error that names the
// object and the offset, in time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "storage/faulty_server.h"
#include "storage/s3_storage.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::FaultyAnswer;
using test::FaultyRequest;
using test::FaultyServer;
using test::http_answer;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kText = "0123456789";
const std::string kDenied =
    "<Error><Code>AccessDenied</Code><Message>You may\nnot</Message></Error>";

storage::S3Settings settings_for(const std::string& endpoint) {
  return {.access_key = "key",
          .secret_key = "very-secret",
          .session_token = "very-secret-too",
          .origin = "AWS_ACCESS_KEY_ID",
          .endpoint = endpoint,
          .path_style = true,
          .timeout = 600ms,
          .stall = 1s};
}

FaultyAnswer head_answer() {
  return {http_answer(200, {"Content-Length: 10", "ETag: \"v1\""}, "")};
}

FaultyAnswer good_part() {
  return {http_answer(206, {"Content-Range: bytes 2-6/10", "ETag: \"v1\""}, "23456")};
}

struct Outcome {
  std::string error = "none";
  std::string text;
  base::Clock::duration time{};
  int num_requests = 0;  // after the HEAD
};

// Opens an object and reads bytes 2 to 6 of it; `fault` answers what is not HEAD, counted from 0.
Outcome read_through(const std::function<FaultyAnswer(int number)>& fault,
                     std::chrono::milliseconds timeout = 600ms) {
  const FaultyServer server([&](const FaultyRequest& request) {
    return request.method == "HEAD" ? head_answer() : fault(request.number - 1);
  });
  storage::S3Settings settings = settings_for(server.endpoint());
  settings.timeout = timeout;
  const storage::S3Storage storage(storage::parse_location("s3://models/gpt2"), settings);
  Outcome outcome;
  const auto begin = base::Clock::now();
  try {
    outcome.text = storage.open("weights")->read_text(2, 5);
  } catch (const IoError& error) {
    outcome.error = error.what();
  }
  outcome.time = base::Clock::now() - begin;
  outcome.num_requests = server.num_requests() - 1;
  EXPECT_LT(outcome.time, 3s);
  EXPECT_THAT(outcome.error, Not(HasSubstr("very-secret")));
  if (outcome.error != "none") {
    EXPECT_THAT(outcome.error,
                AllOf(HasSubstr("s3://models/gpt2/weights"), HasSubstr("at offset 2")));
  }
  return outcome;
}

TEST(S3Faults, WhatPassesIsTriedAgain) {
  const FaultyAnswer passing[] = {
      {http_answer(500, {}, "")},
      {http_answer(503, {}, "<Error><Code>SlowDown</Code></Error>")},
      {http_answer(429, {}, "")},
      {""},             // hangs up at once
      {"garbage\r\n"},  // no HTTP
      {http_answer(206, {"Content-Range: bytes 2-6/10", "Content-Length: 5"}, "234")},  // cut off
      {http_answer(206, {"Content-Range: bytes 2-6/10"}, "234")},      // shorter, and says so
      {http_answer(206, {"Content-Range: bytes 2-6/10"}, "2345678")},  // longer
      {http_answer(206, {"Content-Range: bytes 3-7/10"}, "34567")},    // another part
      {http_answer(200, {}, kText)},                                   // everything
  };
  for (const FaultyAnswer& first : passing) {
    const Outcome outcome =
        read_through([&](int number) { return number == 0 ? first : good_part(); });
    EXPECT_EQ(outcome.text, "23456") << outcome.error << "\n" << first.bytes;
    EXPECT_EQ(outcome.num_requests, 2) << first.bytes;
  }
}

TEST(S3Faults, WhatStaysIsAnErrorInTime) {
  const std::pair<FaultyAnswer, const char*> staying[] = {
      {{http_answer(503, {}, "<Error><Code>SlowDown</Code></Error>")}, "503 SlowDown"},
      {{http_answer(206, {"Content-Range: bytes 2-6/10", "Content-Length: 5"}, "234")},
       "transfer closed with 2 bytes remaining"},
      {{http_answer(206, {"Content-Range: bytes 2-6/10"}, "234")}, "3 bytes instead of 5"},
      {{http_answer(206, {"Content-Range: bytes 2-6/10"}, "2345678")},
       "longer than what was asked"},
      {{http_answer(206, {"Content-Range: bytes 2-6/11"}, "23456")},
       "the part 'bytes 2-6/11' instead of 'bytes 2-6/10'"},
  };
  for (const auto& [answer, expected] : staying) {
    const Outcome outcome = read_through([&answer = answer](int) { return answer; });
    EXPECT_THAT(outcome.error, AllOf(HasSubstr(expected), HasSubstr("attempts")));
    EXPECT_GE(outcome.num_requests, 2);
  }
}

TEST(S3Faults, AStallIsAnErrorInTime) {
  const FaultyAnswer stalls[] = {
      {"", true},
      {http_answer(206, {"Content-Range: bytes 2-6/10", "Content-Length: 5"}, "23"), true},
  };
  for (const FaultyAnswer& answer : stalls) {
    // A second is the least that libcurl calls a stall.
    const Outcome outcome = read_through([&](int) { return answer; }, 1500ms);
    EXPECT_THAT(outcome.error, HasSubstr("imed out")) << outcome.error;
  }
}

TEST(S3Faults, WhatCannotPassIsToldAtOnce) {
  const std::pair<FaultyAnswer, std::vector<const char*>> final_answers[] = {
      {{http_answer(403, {}, kDenied)},
       {"access is denied (403 AccessDenied, \"You may not\")", "AWS_ACCESS_KEY_ID"}},
      {{http_answer(404, {}, "<html>")}, {"there is none (404); check bucket and key"}},
      {{http_answer(412, {}, "")}, {"it was replaced since it was opened (412); open it again"}},
      {{http_answer(206, {"Content-Range: bytes 2-6/10", "ETag: \"v2\""}, "23456")},
       {"it was replaced since it was opened"}},
      {{http_answer(301, {"x-amz-bucket-region: eu-west-1"}, "")},
       {"another region (301); set AWS_REGION=eu-west-1 (here: us-east-1)"}},
      {{http_answer(307, {"Location: http://elsewhere/"}, "")}, {"the bucket is elsewhere (307)"}},
      {{http_answer(400, {}, "")}, {"does not accept the request (400)"}},
  };
  for (const auto& [answer, expected] : final_answers) {
    const Outcome outcome = read_through([&answer = answer](int) { return answer; });
    for (const char* part : expected) {
      EXPECT_THAT(outcome.error, HasSubstr(part));
    }
    EXPECT_EQ(outcome.num_requests, 1) << outcome.error;
    EXPECT_LT(outcome.time, 1s);
  }
}

TEST(S3Faults, NobodyIsThere) {
  std::string endpoint;
  {
    const FaultyServer server([](const FaultyRequest&) { return FaultyAnswer{}; });
    endpoint = server.endpoint();
  }
  const storage::S3Storage storage(storage::parse_location("s3://models/gpt2"),
                                   settings_for(endpoint));
  EXPECT_THAT([&] { storage.open("weights"); },
              testing::ThrowsMessage<IoError>(
                  AllOf(HasSubstr("cannot open s3://models/gpt2/weights (" + endpoint),
                        HasSubstr("connect"), HasSubstr("LOCKSTEP_S3_TIMEOUT allows 600 ms"))));
}

std::string list_error(const std::string& body) {
  const FaultyServer server(
      [&](const FaultyRequest&) { return FaultyAnswer{http_answer(200, {}, body)}; });
  const storage::S3Storage storage(storage::parse_location("s3://models/gpt2"),
                                   settings_for(server.endpoint()));
  try {
    storage.list("");
  } catch (const IoError& error) {
    return error.what();
  }
  return "none";
}

TEST(S3Faults, AListThatIsNone) {
  const std::pair<const char*, const char*> cases[] = {
      {"garbage", "the answer is not XML"},
      {"<ListBucketResult><Contents>", "the answer is not XML: an element without its end"},
      {"<Other/>", "no list of objects"},
      {"<ListBucketResult><Contents><Key>gpt2/a</Key><Size>x</Size></Contents></ListBucketResult>",
       "'gpt2/a' with the size 'x'"},
      {"<ListBucketResult><Contents><Key>other</Key><Size>1</Size></Contents></ListBucketResult>",
       "names the object 'other'"},
      {"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again"
       "</NextContinuationToken></ListBucketResult>",
       "a list without an end"},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_THAT(list_error(body),
                AllOf(HasSubstr("cannot list s3://models/gpt2/"), HasSubstr(expected)));
  }
}

TEST(S3Faults, AnUploadIsComparedWithWhatWasSent) {
  const auto write = [](const std::string& etag) -> std::string {
    const FaultyServer server([&](const FaultyRequest&) {
      return FaultyAnswer{http_answer(200, {"ETag: " + etag}, "")};
    });
    storage::S3Storage storage(storage::parse_location("s3://models"),
                               settings_for(server.endpoint()));
    try {
      const auto writer = storage.create("a");
      writer->append(std::string_view("hello"));
      writer->commit();
    } catch (const IoError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(write("\"5d41402abc4b2a76b9719d911017c592\""), "none");
  EXPECT_THAT(write("\"00000000000000000000000000000000\""),
              AllOf(HasSubstr("cannot write s3://models/a (5 bytes)"),
                    HasSubstr("what was sent the MD5 5d41402abc4b2a76b9719d911017c592")));
}

}  // namespace
}  // namespace lockstep
