#include "launch/node/message.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace lockstep {
namespace {

TEST(Message, ArrivesAsItWasSent) {
  base::FdPair pair = base::make_socket_pair(SOCK_SEQPACKET);
  EXPECT_FALSE(launch::receive_message(pair.read.get()).message.has_value());
  const launch::Message sent{.kind = launch::MessageKind::Ended,
                             .rank = 3,
                             .pid = 4711,
                             .stamp_ns = 1234567890123,
                             .end = {.status = {.code = 0, .signal = SIGSEGV},
                                     .stopped = true,
                                     .last_lines = "last\nlines",
                                     .error = "ValueError"}};
  ASSERT_TRUE(launch::send_message(pair.write.get(), sent));
  const launch::Received received = launch::receive_message(pair.read.get());
  ASSERT_TRUE(received.message.has_value());
  EXPECT_EQ(received.message->kind, sent.kind);
  EXPECT_EQ(received.message->rank, sent.rank);
  EXPECT_EQ(received.message->pid, sent.pid);
  EXPECT_EQ(received.message->end.status.signal, SIGSEGV);
  EXPECT_EQ(received.message->stamp_ns, sent.stamp_ns);
  EXPECT_TRUE(received.message->end.stopped);
  EXPECT_EQ(received.message->end.last_lines, sent.end.last_lines);
  EXPECT_EQ(received.message->end.error, sent.end.error);
}

TEST(Message, WhatIsNotTheEndOfARankHasAStatusAndATextOfItsOwn) {
  base::FdPair pair = base::make_socket_pair(SOCK_SEQPACKET);
  launch::send_message(
      pair.write.get(),
      {.kind = launch::MessageKind::Failed, .status = {.code = 3}, .text = "no image"});
  const auto message = launch::receive_message(pair.read.get()).message;
  EXPECT_EQ(message->status.code, 3);
  EXPECT_EQ(message->text, "no image");
  EXPECT_EQ(message->end.last_lines, "");
}

TEST(Message, CarriesItsSendersPid) {
  base::FdPair pair = base::make_socket_pair(SOCK_SEQPACKET);
  const int yes = 1;
  ::setsockopt(pair.read.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
  launch::send_message(pair.write.get(), {.kind = launch::MessageKind::Started});
  EXPECT_EQ(launch::receive_message(pair.read.get()).sender, ::getpid());
}

TEST(Message, TheEndComesAfterWhatWasSaid) {
  base::FdPair pair = base::make_socket_pair(SOCK_SEQPACKET);
  launch::send_message(pair.write.get(), {.kind = launch::MessageKind::Stop});
  launch::send_message(
      pair.read.get(),
      {.kind = launch::MessageKind::Stop});  // never read: the kernel says ECONNRESET
  pair.write.reset();
  EXPECT_TRUE(launch::receive_message(pair.read.get()).message.has_value());
  EXPECT_TRUE(launch::receive_message(pair.read.get()).closed);
  EXPECT_FALSE(launch::send_message(pair.read.get(), {.kind = launch::MessageKind::Stop}));
}

TEST(Message, TooLongATextIsCut) {
  base::FdPair pair = base::make_socket_pair(SOCK_SEQPACKET);
  ASSERT_TRUE(launch::send_message(pair.write.get(),
                                   {.text = std::string(2 * launch::kMaxMessageText, 'x')}));
  EXPECT_EQ(launch::receive_message(pair.read.get()).message->text.size(), launch::kMaxMessageText);
  const std::string too_long(2 * launch::kMaxMessageText, 'x');
  ASSERT_TRUE(launch::send_message(
      pair.write.get(),
      {.kind = launch::MessageKind::Ended, .end = {.last_lines = too_long, .error = too_long}}));
  const launch::RankEnd end = launch::receive_message(pair.read.get()).message->end;
  EXPECT_EQ(end.last_lines.size(), launch::kMaxMessageText);
  EXPECT_EQ(end.error.size(), launch::kMaxMessageText);
}

}  // namespace
}  // namespace lockstep
