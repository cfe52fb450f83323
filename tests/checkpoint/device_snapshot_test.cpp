// Copies of a device's memory for a save, on CPU tensors: the copies come late, and the memory is
// changed as soon as capture() allows it.

#include "checkpoint/device_snapshot.h"

#include <atomic>
#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/log.h>

#include "device/memory.h"
#include "support/late_copies.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using checkpoint::DeviceSaves;
using checkpoint::DeviceSnapshot;
using checkpoint::PinnedPool;
using test::refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPieceBytes = PinnedPool::kBytes;
constexpr uint64_t kNoLimit = uint64_t{1} << 40;

// Two parts, the first of several pieces and a shorter one.
std::vector<at::Tensor> make_parts(int64_t seed) {
  const auto values = [&](int64_t count) {
    constexpr int64_t kPeriod = 65'521;  // no divisor of a piece
    const at::Tensor some = (at::arange(kPeriod, at::kLong) * (2 * seed + 1)).remainder(251);
    return some.to(at::kByte).repeat({count / kPeriod + 1}).narrow(0, 0, count).clone();
  };
  return {values(5 * kPieceBytes + 4097), values(70'001)};
}

// Writes all chunks and returns what was written, or as far as an exception came.
std::vector<std::byte> write_all(DeviceSnapshot& snapshot) {
  std::vector<std::byte> written;
  for (size_t i = 0; i < snapshot.num_chunks(); ++i) {
    const std::span<const std::byte> bytes = snapshot.begin_write(i);
    written.insert(written.end(), bytes.begin(), bytes.end());
    snapshot.end_write(i);
  }
  return written;
}

void expect_written(const std::vector<std::byte>& written, const std::vector<at::Tensor>& parts) {
  const at::Tensor wanted = at::cat(parts);
  ASSERT_EQ(written.size(), wanted.nbytes());
  EXPECT_EQ(std::memcmp(written.data(), wanted.const_data_ptr(), written.size()), 0);
}

class DeviceSnapshots : public ::testing::Test {
 protected:
  const device::CopiesOnCpu copies_{testing_support::make_late_copies};
};

// Saves with a writer beside, and changes the parts as soon as they are captured.
void save_and_change(DeviceSaves& saves, int64_t seed) {
  const auto parts = make_parts(seed);
  DeviceSnapshot snapshot(saves, {.parts = parts, .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(snapshot.num_chunks(), 7u);
  std::vector<std::byte> written;
  std::thread writer([&] { written = write_all(snapshot); });
  snapshot.capture();
  for (const at::Tensor& part : parts) {
    part.fill_(253);
  }
  writer.join();
  expect_written(written, make_parts(seed));
}

TEST_F(DeviceSnapshots, HoldWhatWasThereWhateverThereIsOfMemory) {
  for (const uint64_t limit : {uint64_t{0}, 3 * PinnedPool::kBytes, kNoLimit}) {
    DeviceSaves saves(at::kCPU, limit);
    for (int64_t seed = 1; seed <= 3; ++seed) {
      save_and_change(saves, seed);
      EXPECT_LE(saves.pool.num_pinned(), std::max<uint64_t>(1, limit / PinnedPool::kBytes));
      EXPECT_LE(saves.pool.num_pinned(), 7u);
    }
  }
}

// Nobody is waited for but the copies: there is no writer here until all has changed.
TEST(PinnedLimit, IsHalfOfWhatARankMayTake) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  using checkpoint::pinned_limit;
  EXPECT_EQ(pinned_limit({}, 3), kNone) << "nothing is known";
  EXPECT_EQ(pinned_limit({.available = 1'000'000}, 1), 500'000u);
  EXPECT_EQ(pinned_limit({.available = 1'000'000}, 8), 62'500u);
  EXPECT_EQ(pinned_limit({.available = 1'000'000, .left_in_cgroups = 64'000}, 4), 8'000u)
      << "the job would be killed";
  EXPECT_EQ(pinned_limit({.available = 50'000, .left_in_cgroups = 64'000}, 1), 25'000u);
  EXPECT_EQ(pinned_limit({.left_in_cgroups = 64'000}, 1), 32'000u);
  EXPECT_EQ(pinned_limit({.available = 1'000'000, .left_in_cgroups = 0}, 1), 0u);
}

TEST_F(DeviceSnapshots, ASecondSaveIsCapturedWithoutTheWriter) {
  DeviceSaves saves(at::kCPU, kNoLimit);
  save_and_change(saves, 1);
  const auto parts = make_parts(2);
  DeviceSnapshot snapshot(saves, {.parts = parts, .timeout = std::chrono::seconds(60)});
  snapshot.capture();
  for (const at::Tensor& part : parts) {
    part.zero_();
  }
  expect_written(write_all(snapshot), make_parts(2));
  EXPECT_EQ(saves.pool.num_pinned(), 7u);
}

// A save that ends early leaves copies under way: the next one uses the same memory.
TEST_F(DeviceSnapshots, ASaveThatFailedDoesNotSpoilTheNext) {
  DeviceSaves saves(at::kCPU, kNoLimit);
  save_and_change(saves, 1);
  for (int64_t seed = 2; seed <= 3; ++seed) {
    {
      DeviceSnapshot failed(saves,
                            {.parts = make_parts(100 + seed), .timeout = std::chrono::seconds(60)});
      failed.close();
      failed.capture();
    }
    save_and_change(saves, seed);
  }
}

TEST_F(DeviceSnapshots, APieceIsFreeOnceItIsWritten) {
  DeviceSaves saves(at::kCPU, PinnedPool::kBytes);
  DeviceSnapshot snapshot(saves, {.parts = make_parts(1), .timeout = std::chrono::seconds(60)});
  snapshot.begin_write(0);
  EXPECT_FALSE(saves.pool.take_used().defined());
  snapshot.end_write(0);
  EXPECT_TRUE(saves.pool.take_used().defined());
}

TEST_F(DeviceSnapshots, ClosingEndsACapture) {
  DeviceSaves saves(at::kCPU, PinnedPool::kBytes);
  DeviceSnapshot snapshot(saves, {.parts = make_parts(1), .timeout = std::chrono::seconds(60)});
  std::thread capture([&] { snapshot.capture(); });
  snapshot.begin_write(0);
  snapshot.close();  // the save has failed
  capture.join();
}

// A disk that hangs: training hangs with it, and somebody must know why.
TEST_F(DeviceSnapshots, ACaptureThatWaitsForADiskSaysSo) {
  DeviceSaves saves(at::kCPU, PinnedPool::kBytes);
  DeviceSnapshot snapshot(saves,
                          {.parts = make_parts(1), .timeout = std::chrono::milliseconds(20)});
  std::promise<std::string> told;
  std::atomic<bool> is_told = false;
  log::set_sink([&](log::Level, std::string_view line) {
    if (!is_told.exchange(true)) {
      told.set_value(std::string(line));
    }
  });
  std::thread capture([&] { snapshot.capture(); });
  auto text = told.get_future();
  EXPECT_EQ(text.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  snapshot.close();
  capture.join();
  log::set_sink({});
  ASSERT_TRUE(is_told);
  EXPECT_THAT(text.get(), AllOf(HasSubstr("has written nothing for 20 ms"), HasSubstr("(4 MiB)")));
}

// Late copies on a host that has no memory to pin.
class PoorCopies : public device::Copies {
 public:
  device::MomentPtr now() override { return late_->now(); }
  void current_waits(const device::MomentPtr& moment) override { late_->current_waits(moment); }
  void after(device::Lane lane, const device::MomentPtr& moment) override {
    late_->after(lane, moment);
  }
  void copy(device::Lane lane, const at::Tensor& to, const at::Tensor& from) override {
    late_->copy(lane, to, from);
  }
  device::MomentPtr reached(device::Lane lane) override { return late_->reached(lane); }
  device::MomentPtr copy_apart(const at::Tensor& to, const at::Tensor& from,
                               const device::MomentPtr& moment) override {
    return late_->copy_apart(to, from, moment);
  }
  at::Tensor memory_of_lane(at::IntArrayRef sizes, at::ScalarType type) override {
    return late_->memory_of_lane(sizes, type);
  }
  void current_uses(const at::Tensor& memory) override { late_->current_uses(memory); }
  bool has_passed(const device::MomentPtr& moment) override { return late_->has_passed(moment); }
  at::Tensor host_memory(int64_t bytes) override {
    TORCH_CHECK(++num_asked_ <= num_pieces, "CUDA error: out of memory");
    return late_->host_memory(bytes);
  }
  void make_fast(const at::Tensor& memory) override { late_->make_fast(memory); }

  static inline int num_pieces = 0;  // that can be pinned

 private:
  const std::unique_ptr<device::Copies> late_ = testing_support::make_late_copies(at::kCPU);
  int num_asked_ = 0;
};

TEST(DeviceSnapshotsOfThePoor, GoOnWithOnePieceAndSayWhatIsLackingWithoutAny) {
  const device::CopiesOnCpu copies([](at::Device) { return std::make_unique<PoorCopies>(); });
  PoorCopies::num_pieces = 1;
  DeviceSaves one(at::kCPU, kNoLimit);
  save_and_change(one, 1);
  save_and_change(one, 2);
  EXPECT_EQ(one.pool.num_pinned(), 1u);
  PoorCopies::num_pieces = 0;
  DeviceSaves none(at::kCPU, kNoLimit);
  DeviceSnapshot snapshot(none, {.parts = make_parts(1), .timeout = std::chrono::seconds(60)});
  EXPECT_THAT(refusal([&] { snapshot.begin_write(0); }),
              AllOf(HasSubstr("checkpoint: the host has no pinned memory for 4.19 MB"),
                    HasSubstr("GB available"), HasSubstr("CUDA error: out of memory")));
}

TEST_F(DeviceSnapshots, ADeviceThatIsTooLateIsAnError) {
  DeviceSaves saves(at::kCPU, kNoLimit);
  std::string said;
  for (int i = 0; i < 1000 && said.empty(); ++i) {
    try {
      DeviceSnapshot late(saves, {.parts = make_parts(1), .timeout = std::chrono::seconds(-1)});
      late.begin_write(0);
    } catch (const IoError& error) {
      said = error.what();
    }
  }
  EXPECT_THAT(said, HasSubstr("has not finished the work that comes before its copy"));
}

}  // namespace
}  // namespace lockstep
