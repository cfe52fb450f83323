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
                             .status = {.code = 0, .signal = SIGSEGV},
                             .stamp_ns = 1234567890123,
                             .stopped = true,
                             .text = "last\nlines",
                             .error = "ValueError"};
  ASSERT_TRUE(launch::send_message(pair.write.get(), sent));
  const launch::Received received = launch::receive_message(pair.read.get());
  ASSERT_TRUE(received.message.has_value());
  EXPECT_EQ(received.message->kind, sent.kind);
  EXPECT_EQ(received.message->rank, sent.rank);
  EXPECT_EQ(received.message->pid, sent.pid);
  EXPECT_EQ(received.message->status.signal, SIGSEGV);
  EXPECT_EQ(received.message->stamp_ns, sent.stamp_ns);
  EXPECT_TRUE(received.message->stopped);
  EXPECT_EQ(received.message->text, sent.text);
  EXPECT_EQ(received.message->error, sent.error);
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
  ASSERT_TRUE(launch::send_message(pair.write.get(),
                                   {.error = std::string(2 * launch::kMaxMessageText, 'x')}));
  EXPECT_EQ(launch::receive_message(pair.read.get()).message->error.size(),
            launch::kMaxMessageText);
}

}  // namespace
}  // namespace lockstep
