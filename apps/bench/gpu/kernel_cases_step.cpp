#include <cstring>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "bench/gpu/kernel_tensors.h"
#include "device/plugin.h"

namespace lockstep {
namespace {

// The parameters of GPT-2 with 124 million of them, or a few small ones.
std::vector<int64_t> parameter_sizes(bool is_small) {
  if (is_small) {
    return {5000, 3, 4096, 1, 777};
  }
  constexpr int64_t kWidth = 768;
  std::vector<int64_t> sizes = {50257 * kWidth, 1024 * kWidth};
  for (int layer = 0; layer < 12; ++layer) {
    for (const int64_t size :
         {kWidth, kWidth, 3 * kWidth * kWidth, 3 * kWidth, kWidth * kWidth, kWidth, kWidth, kWidth,
          4 * kWidth * kWidth, 4 * kWidth, 4 * kWidth * kWidth, kWidth}) {
      sizes.push_back(size);
    }
  }
  sizes.insert(sizes.end(), {kWidth, kWidth});
  return sizes;
}

struct Parameters {
  std::vector<at::Tensor> masters;
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> second;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> copies;
  int64_t count = 0;
  // On the device.
  at::Tensor parameters;
  at::Tensor chunks;
  at::Tensor state;
  LockstepParameterList list{};
};

at::Tensor upload(const KernelPlace& place, const void* from, size_t bytes) {
  const at::Tensor host = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  std::memcpy(host.data_ptr(), from, bytes);
  return host.to(place.device);
}

Parameters make_parameters(const KernelPlace& place) {
  const KernelTensors make(place);
  Parameters result;
  std::vector<LockstepParameter> parameters;
  for (const int64_t count : parameter_sizes(place.is_small)) {
    result.masters.push_back(make.drawn({count}));
    result.first.push_back(make.drawn({count}) * 1e-3);
    result.second.push_back(make.drawn({count}).square() * 1e-6);
    result.gradients.push_back(make.drawn({count}) * 1e-3);
    result.copies.push_back(at::zeros({count}, make.float_options().dtype(at::kBFloat16)));
    result.count += count;
    parameters.push_back({.master = floats_of(result.masters.back()),
                          .moment1 = floats_of(result.first.back()),
                          .moment2 = floats_of(result.second.back()),
                          .grad = result.gradients.back().data_ptr(),
                          .copy = result.copies.back().data_ptr(),
                          .count = count,
                          .grad_type = LOCKSTEP_FLOAT32,
                          .weight_decay = 0.1f,
                          .rate_factor = 1,
                          .reserved = 0});
  }
  const std::vector<LockstepChunk> chunks = device::optimizer_chunks(parameters);
  LockstepStepState state{};
  state.learning_rate = 1e-3f;
  state.grad_scale = 1;
  state.factor = 1;
  state.step = 1;
  state.correction1 = 0.1f;
  state.correction2 = 0.2236f;
  result.parameters = upload(place, parameters.data(), parameters.size() * sizeof(parameters[0]));
  result.chunks = upload(place, chunks.data(), chunks.size() * sizeof(chunks[0]));
  result.state = upload(place, &state, sizeof(state));
  result.list = {static_cast<const LockstepParameter*>(result.parameters.data_ptr()),
                 static_cast<const LockstepChunk*>(result.chunks.data_ptr()),
                 static_cast<int64_t>(chunks.size())};
  return result;
}

KeptTensors all_of(const Parameters& p) {
  KeptTensors all{p.parameters, p.chunks, p.state};
  for (const auto* tensors : {&p.masters, &p.first, &p.second, &p.gradients, &p.copies}) {
    all.insert(all.end(), tensors->begin(), tensors->end());
  }
  return all;
}

std::string count_text(const Parameters& p) {
  return fmt::format("{} in {} tensors", p.count, p.masters.size());
}

KernelCase adamw_case(const KernelPlace& place) {
  const Parameters p = make_parameters(place);
  const LockstepAdamW call{.list = p.list,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .epsilon = 1e-8f,
                           .state = static_cast<const LockstepStepState*>(p.state.data_ptr())};
  KernelCase result{.shape = count_text(p), .bytes = 30.0 * static_cast<double>(p.count)};
  result.run = runner(place, &LockstepKernels::adamw, std::vector{call}, all_of(p));
  result.results = {p.masters[0], p.first[0], p.second[0], p.copies[0]};
  return result;
}

KernelCase sgd_case(const KernelPlace& place) {
  const Parameters p = make_parameters(place);
  const LockstepSgd call{.list = p.list,
                         .momentum = 0.9f,
                         .dampening = 0,
                         .nesterov = 0,
                         .state = static_cast<const LockstepStepState*>(p.state.data_ptr())};
  KernelCase result{.shape = count_text(p), .bytes = 22.0 * static_cast<double>(p.count)};
  result.run = runner(place, &LockstepKernels::sgd, std::vector{call}, all_of(p));
  result.results = {p.masters[0], p.first[0], p.copies[0]};
  return result;
}

KernelCase global_norm_case(const KernelPlace& place) {
  const Parameters p = make_parameters(place);
  const KernelTensors make(place);
  const at::Tensor out = at::zeros({1}, make.float_options().dtype(at::kDouble));
  KernelCase result{.shape = count_text(p), .bytes = 4.0 * static_cast<double>(p.count)};
  result.results = {out};
  if (place.device.is_cpu()) {
    result.run = [=](int) {
      out.zero_();
      for (const at::Tensor& gradient : p.gradients) {
        out.add_(gradient.to(at::kDouble).square().sum());
      }
    };
    return result;
  }
  std::vector<const void*> data;
  std::vector<int64_t> counts;
  for (const at::Tensor& gradient : p.gradients) {
    data.push_back(gradient.data_ptr());
    counts.push_back(gradient.numel());
  }
  const std::vector<int32_t> types(data.size(), LOCKSTEP_FLOAT32);
  const at::Tensor scratch = make.bytes(device::plugin()->squares_scratch_bytes);
  result.run = [=](int) {
    check_kernel(device::plugin()->sum_of_squares(
                     data.data(), counts.data(), types.data(), static_cast<int32_t>(data.size()),
                     out.data_ptr<double>(), scratch.data_ptr(), nullptr),
                 "sum_of_squares");
    static_cast<void>(p);  // its gradients are kept
  };
  return result;
}

// ResNet-50's widest batch norm of a batch of 256: 56 x 56 pixels of 256 channels.
struct Pixels {
  int64_t rows = 0;
  int64_t channels = 0;
};

Pixels pixels_of(const KernelPlace& place) {
  return place.is_small ? Pixels{500, 64} : Pixels{256 * 56 * 56, 256};
}

KernelCase batch_norm_forward_case(const KernelPlace& place) {
  const auto [rows, channels] = pixels_of(place);
  const KernelTensors make(place);
  const at::Tensor x = make.matrix(rows, channels);
  const at::Tensor residual = make.matrix(rows, channels);
  const at::Tensor out = at::empty_like(x);
  const at::Tensor weight = make.parameter(channels);
  const at::Tensor bias = make.parameter(channels);
  const at::Tensor statistics = make.floats(4 * channels);
  const at::Tensor scratch = make.bytes(place.kernels->column_scratch_bytes(rows, channels));
  const LockstepBatchNormForward call{.rows = rows,
                                      .channels = channels,
                                      .type = type_of(place.type),
                                      .relu = 1,
                                      .epsilon = 1e-5f,
                                      .momentum = 0.1f,
                                      .x = x.data_ptr(),
                                      .residual = residual.data_ptr(),
                                      .weight = floats_of(weight),
                                      .bias = floats_of(bias),
                                      .out = out.data_ptr(),
                                      .mean = floats_of(statistics),
                                      .rstd = floats_of(statistics) + channels,
                                      .running_mean = floats_of(statistics) + 2 * channels,
                                      .running_var = floats_of(statistics) + 3 * channels,
                                      .scratch = scratch.data_ptr()};
  KernelCase result{.shape = fmt::format("{}x{}", rows, channels), .bytes = 4.0 * bytes_of(x)};
  result.run = runner(place, &LockstepKernels::batch_norm_forward, std::vector{call},
                      {x, residual, out, weight, bias, statistics, scratch});
  result.results = {out, statistics};
  return result;
}

KernelCase batch_norm_backward_case(const KernelPlace& place) {
  const auto [rows, channels] = pixels_of(place);
  const KernelTensors make(place);
  const at::Tensor x = make.matrix(rows, channels);
  const at::Tensor out = make.matrix(rows, channels).relu_();
  const at::Tensor grad_out = make.matrix(rows, channels);
  const at::Tensor grad_x = at::empty_like(x);
  const at::Tensor grad_residual = at::empty_like(x);
  const at::Tensor weight = make.parameter(channels);
  const at::Tensor mean = make.drawn({channels}) * 0.1;
  const at::Tensor rstd = make.parameter(channels);
  const at::Tensor gradients = make.floats(2 * channels);
  const at::Tensor scratch = make.bytes(place.kernels->column_scratch_bytes(rows, channels));
  const LockstepBatchNormBackward call{.rows = rows,
                                       .channels = channels,
                                       .type = type_of(place.type),
                                       .relu = 1,
                                       .accumulate = 0,
                                       .grad_out = grad_out.data_ptr(),
                                       .x = x.data_ptr(),
                                       .out = out.data_ptr(),
                                       .mean = floats_of(mean),
                                       .rstd = floats_of(rstd),
                                       .weight = floats_of(weight),
                                       .grad_x = grad_x.data_ptr(),
                                       .grad_residual = grad_residual.data_ptr(),
                                       .grad_weight = floats_of(gradients),
                                       .grad_bias = floats_of(gradients) + channels,
                                       .scratch = scratch.data_ptr()};
  KernelCase result{.shape = fmt::format("{}x{}", rows, channels), .bytes = 8.0 * bytes_of(x)};
  result.run =
      runner(place, &LockstepKernels::batch_norm_backward, std::vector{call},
             {x, out, grad_out, grad_x, grad_residual, weight, mean, rstd, gradients, scratch});
  result.results = {grad_x, grad_residual, gradients};
  return result;
}

}  // namespace

const std::vector<KernelEntry>& other_kernel_entries() {
  static const std::vector<KernelEntry> entries = {
      {.name = "global_norm", .has_types = false, .make = global_norm_case},
      {.name = "adamw", .has_types = false, .make = adamw_case},
      {.name = "sgd", .has_types = false, .make = sgd_case},
      {.name = "batch_norm_forward", .make = batch_norm_forward_case},
      {.name = "batch_norm_backward", .make = batch_norm_backward_case}};
  return entries;
}

}  // namespace lockstep
