#include <lockstep/base/error.h>
#include <lockstep/ddp/comm_hook.h>

namespace lockstep {
namespace {

class FunctionHook : public CommHook {
 public:
  using Start = std::function<Work(const GradBucket&, Group&)>;
  explicit FunctionHook(Start start) : start_(std::move(start)) {}

  Work start(const GradBucket& bucket, Group& group) override { return start_(bucket, group); }

 private:
  Start start_;
};

}  // namespace

void CommHook::finish(const GradBucket& /*bucket*/, Group& /*group*/) {}

std::shared_ptr<CommHook> make_comm_hook(
    std::function<Work(const GradBucket& bucket, Group& group)> start) {
  if (!start) {
    throw UsageError("ddp: make_comm_hook was given an empty function");
  }
  return std::make_shared<FunctionHook>(std::move(start));
}

std::shared_ptr<CommHook> allreduce_hook() {
  return make_comm_hook([](const GradBucket& bucket, Group& group) {
    return group.all_reduce_async(bucket.buffer, {.op = ReduceOp::Average});
  });
}

}  // namespace lockstep
