#pragma once

// The whole public API of lockstep, except for <lockstep/comm/c10d.h>, which needs c10d's own
// headers. docs/tour.md shows it at work. A program that includes this header and links
// lockstep::lockstep has everything; single headers compile faster.
//
// Example:
//   auto group = lockstep::init();
//   lockstep::DistributedDataParallel ddp(model, group);
//   lockstep::DistributedSampler sampler(
//       {.num_samples = data.size(), .num_ranks = group.size(), .rank = group.rank()});
//   lockstep::BatchOptions options{.indices = sampler.indices(epoch), .batch_size = 32};
//   for (auto batch : lockstep::batches(data, options)) {
//     optimizer.zero_grad();
//     loss(ddp(batch.input), batch.target).backward();  // the all-reduce overlaps this
//     optimizer.step();                                 // the same update on every rank
//   }

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/version.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint_files/verify.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/requests.h>
#include <lockstep/comm/store.h>
#include <lockstep/comm/work.h>
#include <lockstep/data/batch.h>
#include <lockstep/data/batches.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/data/image_data.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/numpy_data.h>
#include <lockstep/data/text_data.h>
#include <lockstep/data/token_data.h>
#include <lockstep/ddp/comm_hook.h>
#include <lockstep/ddp/compress_hooks.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/local_sgd.h>
#include <lockstep/ddp/outputs.h>
#include <lockstep/ddp/power_sgd.h>
#include <lockstep/ddp/reducer.h>
#include <lockstep/ddp/sync_batch_norm.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/device/device.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/configured_module.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/loss.h>
#include <lockstep/models/model_config.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>
#include <lockstep/tokenizers/tokenizer.h>
#include <lockstep/train/parameter_group.h>
#include <lockstep/train/task.h>
#include <lockstep/train/trainer.h>
#include <lockstep/weights/save.h>
#include <lockstep/weights/weights.h>
