#include "shm/messenger.h"

#include <array>
#include <condition_variable>
#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr size_t kRingBytes = 64 << 10;  // of a mailbox in a small team

// Counts messages that are done, and keeps what they say.
class Outcomes {
 public:
  auto callback() {
    return [this](const std::string& error) {
      const std::lock_guard lock(mutex_);
      errors_.push_back(error);
      changed_.notify_all();
    };
  }

  // Waits for `count` in all and returns them.
  std::vector<std::string> wait(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return errors_.size() >= count; }))
        << errors_.size() << " of " << count << " messages are done";
    return errors_;
  }

  void expect_all_well(size_t count) {
    EXPECT_EQ(wait(count), std::vector<std::string>(count, ""));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> errors_;
};

class MessengerTest : public ::testing::Test {
 protected:
  void make(int size) {
    arenas_ = std::make_unique<Arenas>(size);
    for (int rank = 0; rank < size; ++rank) {
      messengers_.push_back(std::make_unique<Messenger>(rank, arenas_->addresses()));
    }
  }

  Messenger& at(int rank) { return *messengers_[static_cast<size_t>(rank)]; }

  template <typename T>
  Message message(int peer, int tag, std::vector<T>& values) {
    return {.peer = peer,
            .tag = tag,
            .type = std::is_same_v<T, float> ? DataType::Float32
                    : sizeof(T) == 4         ? DataType::Int32
                                             : DataType::UInt8,
            .data = values.data(),
            .bytes = values.size() * sizeof(T),
            .done = outcomes_.callback()};
  }

  Outcomes outcomes_;  // outlives the messengers, which call it
  std::unique_ptr<Arenas> arenas_;
  std::vector<std::unique_ptr<Messenger>> messengers_;
};

std::vector<uint8_t> pattern(size_t bytes, int seed) {
  std::vector<uint8_t> values(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    values[i] = static_cast<uint8_t>(scramble(static_cast<uint64_t>(seed) << 32 | i / 8) >> i % 8);
  }
  return values;
}

TEST_F(MessengerTest, KeepsTheOrderOfOneTag) {
  make(2);
  constexpr int kNumMessages = 500;
  std::vector<std::vector<int>> sent;
  std::vector<std::vector<int>> received(kNumMessages, std::vector<int>(1));
  for (int i = 0; i < kNumMessages; ++i) {
    sent.push_back({i});
  }
  for (int i = 0; i < kNumMessages; ++i) {
    at(0).send(message(1, 3, sent[static_cast<size_t>(i)]));
    at(1).receive(message(0, 3, received[static_cast<size_t>(i)]));
  }
  outcomes_.expect_all_well(2 * kNumMessages);
  EXPECT_EQ(received, sent);
}

TEST_F(MessengerTest, MatchesTagsInAnyOrder) {
  make(2);
  constexpr int kNumTags = 20;
  std::vector<std::vector<uint8_t>> sent;
  std::vector<std::vector<uint8_t>> received;
  for (int tag = 0; tag < kNumTags; ++tag) {
    sent.push_back(pattern(static_cast<size_t>(tag) * 1500, tag));  // together, more than the ring
    received.emplace_back(sent.back().size());
  }
  for (int tag = 0; tag < kNumTags; ++tag) {
    at(0).send(message(1, tag, sent[static_cast<size_t>(tag)]));
  }
  for (int tag = kNumTags - 1; tag >= 0; --tag) {
    at(1).receive(message(0, tag, received[static_cast<size_t>(tag)]));
  }
  outcomes_.expect_all_well(2 * kNumTags);
  EXPECT_EQ(received, sent);
}

TEST_F(MessengerTest, KeepsTheOrderOfATagWhoseFirstMessageCameUnexpected) {
  make(2);
  std::vector<int> sent[] = {{1}, {2}, {3}, {4}};
  std::vector<int> received[] = {{0}, {0}, {0}, {0}};
  at(0).send(message(1, 7, sent[0]));
  at(0).send(message(1, 8, sent[1]));
  at(1).receive(message(0, 8, received[1]));  // reads past the first
  outcomes_.expect_all_well(3);
  at(0).send(message(1, 7, sent[2]));
  at(0).send(message(1, 7, sent[3]));
  for (const int i : {0, 2, 3}) {
    at(1).receive(message(0, 7, received[i]));
  }
  outcomes_.expect_all_well(8);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(received[i], sent[i]);
  }
}

TEST_F(MessengerTest, CarriesNothing) {
  make(2);
  std::vector<uint8_t> nothing;
  std::vector<uint8_t> sent = pattern(10, 1);
  std::vector<uint8_t> received(10);
  at(0).send(message(1, 0, nothing));
  at(0).send(message(1, 1, nothing));
  at(0).send(message(1, 2, sent));
  at(1).receive(message(0, 2, received));  // the empty ones come unexpected
  outcomes_.expect_all_well(4);
  at(1).receive(message(0, 1, nothing));
  at(1).receive(message(0, 0, nothing));
  outcomes_.expect_all_well(6);
  EXPECT_EQ(received, sent);
}

TEST_F(MessengerTest, CarriesWhatIsLargerThanTheRing) {
  make(2);
  for (const size_t bytes : {kRingBytes - 17, kRingBytes - 16, kRingBytes, 5 * kRingBytes + 3}) {
    std::vector<uint8_t> sent = pattern(bytes, 1);
    std::vector<uint8_t> received(bytes);
    Outcomes both;
    Message out = message(1, 1, sent);
    Message in = message(0, 1, received);
    out.done = both.callback();
    in.done = both.callback();
    at(0).send(out);
    at(1).receive(in);
    both.expect_all_well(2);
    EXPECT_TRUE(received == sent) << bytes;
  }
}

// Everybody sends to everybody before anybody receives.
TEST_F(MessengerTest, CarriesAllDirectionsAtOnce) {
  constexpr int kSize = 5;
  constexpr size_t kBytes = 3 * kRingBytes / 2;
  make(kSize);
  std::vector<std::vector<uint8_t>> sent;
  std::vector<std::vector<uint8_t>> received(kSize * kSize, std::vector<uint8_t>(kBytes));
  for (int i = 0; i < kSize * kSize; ++i) {
    sent.push_back(pattern(kBytes, i));
  }
  for (int from = 0; from < kSize; ++from) {
    for (int to = 0; to < kSize; ++to) {  // to itself as well
      at(from).send(message(to, to, sent[static_cast<size_t>(from * kSize + to)]));
    }
  }
  for (int from = 0; from < kSize; ++from) {
    for (int to = 0; to < kSize; ++to) {
      at(to).receive(message(from, to, received[static_cast<size_t>(from * kSize + to)]));
    }
  }
  outcomes_.expect_all_well(2 * kSize * kSize);
  EXPECT_TRUE(received == sent);
}

TEST_F(MessengerTest, SaysWhenTheSizeDiffers) {
  make(2);
  std::vector<int> sent(10);
  std::vector<int> received(11);
  at(0).send(message(1, 4, sent));
  Outcomes theirs;
  Message wanted = message(0, 4, received);
  wanted.done = theirs.callback();
  at(1).receive(wanted);
  const std::string error = theirs.wait(1)[0];
  EXPECT_THAT(error, HasSubstr("rank 0"));
  EXPECT_THAT(error, HasSubstr("tag 4"));
  EXPECT_THAT(error, HasSubstr("10"));
  EXPECT_THAT(error, HasSubstr("11"));
}

TEST_F(MessengerTest, SaysWhenTheTypeDiffers) {
  make(2);
  std::vector<int> sent(10);
  std::vector<float> received(10, 1.5F);
  Outcomes theirs;
  Message wanted = message(0, 0, received);
  wanted.done = theirs.callback();
  at(1).receive(wanted);
  at(0).send(message(1, 0, sent));
  EXPECT_NE(theirs.wait(1)[0], "");
  EXPECT_EQ(received, std::vector<float>(10, 1.5F));
}

TEST_F(MessengerTest, SaysWhenWhatCameUnexpectedDiffers) {
  make(2);
  std::vector<int> sent(10);
  std::vector<int> received(20);
  at(0).send(message(1, 1, sent));
  at(0).send(message(1, 2, sent));
  Outcomes theirs;
  for (const int tag : {2, 1}) {  // the first is read to get at the second
    Message wanted = message(0, tag, tag == 2 ? sent : received);
    wanted.done = theirs.callback();
    at(1).receive(wanted);
    theirs.wait(tag == 2 ? 1 : 2);
  }
  EXPECT_EQ(theirs.wait(2)[0], "");
  EXPECT_NE(theirs.wait(2)[1], "");
}

// Whoever waits for that rank, then or later, hears the same; nothing is read into freed memory.
TEST_F(MessengerTest, EndsEveryReceiveFromARankAfterAMismatch) {
  make(2);
  std::vector<int> sent(10);
  std::vector<int> wrong(11);
  std::vector<int> right(10);
  Outcomes theirs;
  const auto receive = [&](int tag, std::vector<int>& values) {
    Message wanted = message(0, tag, values);
    wanted.done = theirs.callback();
    at(1).receive(wanted);
  };
  receive(1, wrong);
  receive(2, right);
  at(0).send(message(1, 1, sent));
  at(0).send(message(1, 2, sent));
  EXPECT_NE(theirs.wait(2)[0], "");
  EXPECT_NE(theirs.wait(2)[1], "");
  receive(2, right);
  receive(1, right);
  EXPECT_NE(theirs.wait(4)[2], "");
  EXPECT_NE(theirs.wait(4)[3], "");
}

TEST_F(MessengerTest, TouchesNothingOnceStopped) {
  for (int round = 0; round < 20; ++round) {
    Arenas arenas(2);
    Messenger sender(0, arenas.addresses());
    Messenger receiver(1, arenas.addresses());
    std::vector<uint8_t> sent = pattern(4 * kRingBytes, round);
    std::vector<uint8_t> received(sent.size());
    std::atomic<int> num_done{0};
    const auto count = [&](const std::string& /*error*/) { num_done.fetch_add(1); };
    sender.send({.peer = 1, .data = sent.data(), .bytes = sent.size(), .done = count});
    receiver.receive({.peer = 0, .data = received.data(), .bytes = received.size(), .done = count});
    receiver.stop();  // in the middle, at the start or at the end
    const std::vector<uint8_t> then = received;
    sender.stop();
    const int num_then = num_done.load();
    sender.send({.peer = 1, .data = sent.data(), .bytes = 1, .done = count});
    receiver.receive({.peer = 0, .data = received.data(), .bytes = 1, .done = count});
    receiver.stop();
    EXPECT_TRUE(received == then);
    EXPECT_EQ(num_done.load(), num_then);
  }
}

TEST_F(MessengerTest, KeepsNothingOnceItIsStopped) {
  make(2);
  std::vector<uint8_t> data(1 << 20);  // more than a mailbox holds
  std::vector<std::weak_ptr<int>> kept;
  std::vector<std::string> errors;
  const auto pending = [&](int tag) {
    const auto owned = std::make_shared<int>(tag);
    kept.push_back(owned);
    Message result = message(1, tag, data);
    result.done = [&errors, owned](const std::string& error) { errors.push_back(error); };
    return result;
  };
  EXPECT_TRUE(at(0).send(pending(0)));
  EXPECT_TRUE(at(0).send(pending(1)));
  EXPECT_TRUE(at(0).receive(pending(2)));
  at(0).stop();
  EXPECT_EQ(errors, std::vector<std::string>(3, Messenger::kStopped));
  EXPECT_FALSE(at(0).send(pending(3)));
  EXPECT_FALSE(at(0).receive(pending(4)));
  EXPECT_EQ(errors.size(), 3U);
  for (const auto& owned : kept) {
    EXPECT_TRUE(owned.expired());
  }
}

TEST_F(MessengerTest, WhoeverStopsItHasTheThreadsEnd) {
  for (int round = 0; round < 20; ++round) {
    messengers_.clear();
    make(2);
    std::atomic<int> num_done{0};
    std::vector<uint8_t> data(1 << 20);
    Message slow = message(1, 0, data);
    slow.done = [&](const std::string& /*error*/) {
      std::this_thread::yield();
      num_done.fetch_add(1);
    };
    at(0).send(slow);
    std::thread other([&] {
      at(0).stop();
      EXPECT_EQ(num_done.load(), 1);
    });
    at(0).stop();
    EXPECT_EQ(num_done.load(), 1);
    other.join();
  }
}

TEST_F(MessengerTest, CanBeStoppedByACallback) {
  make(2);
  std::vector<uint8_t> data(1);
  Outcomes stopped;
  Message last = message(1, 0, data);
  last.done = [&, tell = stopped.callback()](const std::string& error) {
    at(0).stop();
    tell(error);
  };
  at(0).send(last);
  std::vector<uint8_t> received(1);
  at(1).receive(message(0, 0, received));
  stopped.expect_all_well(1);
}

}  // namespace
}  // namespace lockstep::shm::test
